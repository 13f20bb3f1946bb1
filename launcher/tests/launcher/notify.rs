//! What systemd hears of a server that it has started.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::Launcher;

/// The next message.
fn hear(socket: &UnixDatagram) -> String {
    let mut message = [0; 256];
    let length = socket.recv(&mut message).unwrap();
    String::from_utf8_lossy(&message[..length]).into_owned()
}

/// Skips what the watchdog hears.
fn hear_other(socket: &UnixDatagram) -> String {
    loop {
        let message = hear(socket);
        if message.trim() != "WATCHDOG=1" {
            return message;
        }
    }
}

#[test]
fn it_hears_that_the_server_is_ready_lives_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let env = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "30000"),
    ];
    let launcher = Launcher::start(&[], &env);
    assert_eq!(hear(&socket).trim(), "READY=1");
    launcher.wait_until_ready();
    assert_eq!(hear(&socket).trim(), "WATCHDOG=1");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(hear_other(&socket).trim(), "STOPPING=1");
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    // Only the launcher speaks for the server.
    for process in ["shard 0", "router"] {
        let start = ended.start_of(process);
        assert!(start["env"].get("NOTIFY_SOCKET").is_none(), "{start}");
    }
}
