//! Codex and Claude Code as their users run them, over a mock model that calls their tool once and then answers.

use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
use text_generation_mock_shard::Script;
use tokio::process::Command;

use super::*;

/// The folder of the programs, where npm has installed them.
const PROGRAMS: &str = "TEXT_GENERATION_AGENTS";
/// A prompt of an agent has some 100,000 characters, each a token here.
const CONTEXT: u32 = 400_000;
/// What the model can know from the tool alone.
const SECRET: &str = "kumquat-8431";
const ANSWER: &str = "The note names a fruit.";

/// Runs a program in a folder with `note.txt`, against a server whose model calls `tool` until it has read the note.
/// Returns what the program printed.
async fn run(
    tool: &str,
    arguments: impl Fn(&Path) -> Value,
    command: impl Fn(&str) -> Command,
) -> String {
    let home = TempDir::new().expect("a folder");
    let note = home.path().join("note.txt");
    std::fs::write(&note, SECRET).expect("written");
    let call = json!({"name": tool, "arguments": arguments(&note)});
    let script = Script::default();
    script.answer_to(ids(SECRET), ids(ANSWER));
    script.answer_to(
        [],
        ids(&format!("I will look.<tool_call>\n{call}\n</tool_call>")),
    );
    let model = MockConfig {
        tokens: script.tokens(common::EOS),
        max_input_tokens: CONTEXT - 1,
        max_total_tokens: CONTEXT,
        max_batch_total_tokens: CONTEXT,
        check_slots: false,
        ..MockConfig::default()
    };
    let server = serving(HERMES, model, &[]).await;
    let running = command(&server.url)
        .current_dir(home.path())
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = tokio::time::timeout(common::LONG, running).await;
    let output = ended.expect("an end").expect("a program");
    let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}\n{told}");
    server.idle().await;
    said.into_owned()
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes()
        .map(|byte| common::BYTES + u32::from(byte))
        .collect()
}

/// A program that npm has installed; it sees nothing of the caller's settings.
fn program(name: &str) -> Command {
    let folder = std::env::var_os(PROGRAMS).expect("the folder of the programs");
    let mut command = Command::new(Path::new(&folder).join(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path);
    command
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs from npm: `make test-agents`"]
async fn codex_runs_a_command_and_reads_its_output() {
    let said = run(
        "exec_command",
        |note| json!({"cmd": format!("cat {}", note.display())}),
        |url| {
            let provider = format!(
                r#"model_providers.own={{name="own",base_url="{url}/v1",env_key="OWN_KEY",wire_api="responses"}}"#
            );
            let mut command = program("codex");
            command
                .args(["exec", "--skip-git-repo-check"])
                // The sandbox needs namespaces, which a container may not have.
                .arg("--dangerously-bypass-approvals-and-sandbox")
                .args(["-c", "model_provider=own", "-c", &provider, "-m", "demo"])
                .arg("What does note.txt say?")
                .env("OWN_KEY", "any");
            command
        },
    )
    .await;
    assert_eq!(said.trim(), ANSWER);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs from npm: `make test-agents`"]
async fn claude_code_reads_a_file() {
    let said = run(
        "Read",
        |note| json!({"file_path": note}),
        |url| {
            let mut command = program("claude");
            command
                .args(["-p", "What does note.txt say?", "--model", "demo"])
                .args(["--allowedTools", "Read"])
                .env("ANTHROPIC_BASE_URL", url)
                .env("ANTHROPIC_API_KEY", "any")
                .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
            command
        },
    )
    .await;
    assert_eq!(said.trim(), ANSWER);
}
