//! Limits of tenants, as requests meet them.

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::tenant::{Grant, Tenant};

fn of(tenant: &Tenant, max_new_tokens: u32) -> GenerateRequest {
    with(request("once", max_new_tokens), |parameters| {
        parameters.tenant = tenant.clone();
    })
}

fn tenant(grant: Grant) -> Tenant {
    Tenant::new("acme", grant)
}

#[tokio::test]
async fn places_of_a_tenant_come_back_with_those_of_the_server() {
    let server = Server::start(mock_config(), batch_limits(), 8).await;
    let few = tenant(Grant {
        max_concurrent_requests: Some(2),
        ..Grant::default()
    });
    let pair = async || server.infer.generate_group(group(of(&few, 4), 2)).await;
    let running = pair().await.unwrap();
    let refused = server.infer.generate_stream(of(&few, 4)).await.unwrap_err();
    let expected = Overload::TenantRequests { max: 2 };
    assert_eq!(refused, InferError::Overloaded(expected));
    assert_eq!(server.infer.snapshot().permits_available, 6);
    drop(running);
    gather_best(pair().await.unwrap()).await.unwrap();
    server.assert_clean(8).await;
    // What is not valid gives them back too.
    for _ in 0..3 {
        let invalid = with(of(&few, 4), |parameters| parameters.top_p = Some(2.0));
        let refused = server.infer.generate(invalid).await.unwrap_err();
        assert!(matches!(refused, InferError::Validation(_)));
    }
    pair().await.unwrap();
}

/// Runs on one thread, so that a recorder of this test sees everything.
#[test]
fn refusals_of_tenants_are_counted_as_overload() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let server = Server::default().await;
            let slow = tenant(Grant {
                tokens_per_minute: Some(10),
                ..Grant::default()
            });
            // No limit cuts an answer.
            let answer = server.infer.generate(of(&slow, 20)).await.unwrap();
            assert_eq!(answer.generated.generated_tokens, 20);
            let refused = server.infer.generate(of(&slow, 1)).await.unwrap_err();
            // The debt and the next prompt, at one token in six seconds.
            let longest = 6 * (2 * u64::from(answer.input_length) + 20 - 10);
            let seconds = refused.retry_after().as_secs();
            assert!((longest - 10..=longest).contains(&seconds), "{refused}");
            server.assert_clean(128).await;
        });
    });
    let page = recorder.handle().render();
    for line in [
        "tgi_request_count 2",
        r#"tgi_request_failure{err="overloaded"} 1"#,
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("acme"), "{page}");
}
