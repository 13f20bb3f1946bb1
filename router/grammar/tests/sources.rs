use text_generation_grammar::*;
fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<TokenEntry> = (0..=255u8)
        .map(|b| TokenEntry {
            bytes: vec![b],
            special: false,
        })
        .collect();
    for word in ["ab", "\": ", "{\"", "true", "null", "  "] {
        tokens.push(TokenEntry {
            bytes: word.as_bytes().to_vec(),
            special: false,
        });
    }
    tokens.push(TokenEntry {
        bytes: b"</s>".to_vec(),
        special: true,
    });
    tokens.push(TokenEntry {
        bytes: b"<|end|>".to_vec(),
        special: true,
    });
    let n = tokens.len() as u32;
    Vocabulary::new(tokens, &[n - 2, n - 1]).unwrap()
}
#[tokio::test]
async fn smoke() {
    let compiler = Compiler::new(vocabulary(), CompilerLimits::default());
    let g = compiler
        .compile(GrammarSource::Regex("[a-z]{3}".into()))
        .await
        .unwrap();
    let mut m = g.matcher();
    for b in b"abc" {
        assert!(m.mask().unwrap().allows(*b as u32));
        m.accept(*b as u32).unwrap();
    }
    assert!(m.is_finished());
    let g = compiler.compile(GrammarSource::json_schema(serde_json::json!({"type":"object","properties":{"name":{"type":"integer"}},"required":["name"]}), true).unwrap()).await.unwrap();
    let mut m = g.matcher();
    for b in b"{\"name\":  5" {
        assert!(m.mask().unwrap().allows(*b as u32));
        m.accept(*b as u32).unwrap();
    }
    m.accept(b'}' as u32).unwrap();
    assert!(m.is_finished());
}
