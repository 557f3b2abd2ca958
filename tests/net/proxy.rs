//! A proxy between the workers and the server: nginx as it comes, with a short limit on silence, a small limit on
//! bodies, and buffers.

use std::path::Path;
use std::process::Stdio;

use gpulayer::contract::job::JobState;
use serde_json::json;

use crate::machines::{Machine, Program};
use crate::stand::Stand;

const PORT: u16 = 8080;

/// nginx in front of the stand's server, on the same machine; it listens.
async fn nginx(stand: &Stand, most_body: &str) -> Program {
    let folder = stand.server.folder().join("nginx");
    std::fs::create_dir_all(&folder).unwrap();
    let (shown, server, tls) = (folder.display(), stand.server.address(), stand.home().join("tls"));
    let tls = tls.display();
    let configuration = format!(
        "daemon off; pid {shown}/pid; error_log {shown}/error.log;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n\
           access_log {shown}/access.log;\n\
           client_body_temp_path {shown}/body; proxy_temp_path {shown}/proxy; fastcgi_temp_path {shown}/f;\n\
           uwsgi_temp_path {shown}/u; scgi_temp_path {shown}/s;\n\
           server {{\n\
             listen {server}:{PORT} ssl;\n\
             ssl_certificate {tls}/cert.pem; ssl_certificate_key {tls}/key.pem;\n\
             client_max_body_size {most_body};\n\
             location / {{ proxy_pass https://{server}:8470; proxy_read_timeout 3s; }}\n\
           }}\n\
         }}\n\
         user root;\n"
    );
    std::fs::write(folder.join("nginx.conf"), configuration).unwrap();
    let mut command = stand.server.command("nginx");
    command.args(["-e", "stderr", "-c"]).arg(folder.join("nginx.conf")).stdin(Stdio::null());
    let program = stand.server.start_program(&mut command);
    // It writes its pid down once its ports are open, and removes it at its end.
    stand.eventually("nginx to listen", async || folder.join("pid").exists().then_some(())).await;
    program
}

/// The lines of nginx' log that name this path and status.
fn answered(server: &Machine, path: &str, status: u16) -> usize {
    let log = std::fs::read_to_string(server.folder().join("nginx/access.log")).unwrap_or_default();
    log.lines().filter(|line| line.contains(path) && line.contains(&format!("\" {status} "))).count()
}

async fn proxied_worker(stand: &Stand, machine: &Machine, folder: &Path) -> Program {
    let worker = stand.start_worker(machine, &stand.url_at(PORT), folder);
    stand.present(machine.name()).await;
    worker
}

#[actix_rt::test]
async fn a_worker_learns_how_long_the_proxy_lets_it_wait_and_does_not_spin() {
    let Some(stand) = Stand::lay().await else { return };
    let _nginx = nginx(&stand, "1m").await;
    let machine = stand.network.machine("w1");
    let _worker = proxied_worker(&stand, &machine, &machine.folder().join("w")).await;
    let cuts = || answered(&stand.server, "/v1/worker/acquire", 504);
    stand.eventually("the first cut", async || (cuts() > 0).then_some(())).await;
    let polls = || answered(&stand.server, "/v1/worker/acquire", 200);
    let heartbeats = || answered(&stand.server, "/v1/worker/heartbeat", 200);
    let (before, beats) = (polls(), heartbeats());
    stand.eventually("polls that end by themselves", async || (polls() >= before + 3).then_some(())).await;
    assert_eq!(cuts(), 1, "it asks for less than what was cut");
    assert!(polls() - before < heartbeats() - beats, "it polls less often than its heart beats");
    assert!(stand.said(&machine).contains("asking for shorter ones"), "it says what it learnt");

    let idle = polls();
    let id = stand.submit(&json!({"workload": {"command": {"argv": ["true"]}}})).await;
    assert_eq!(stand.end(id).await.state, JobState::Succeeded);
    assert!(polls() <= idle + 3, "the poll that waited brought the task");
}

#[actix_rt::test]
async fn outputs_larger_than_the_proxy_takes_at_once_come_in_parts() {
    let Some(stand) = Stand::lay().await else { return };
    let _nginx = nginx(&stand, "1m").await;
    let machine = stand.network.machine("w1");
    let _worker = proxied_worker(&stand, &machine, &machine.folder().join("w")).await;
    let spec = json!({
        "workload": {"command": {"shell": "head -c 5000000 /dev/urandom > out.bin; sha256sum out.bin | cut -d' ' -f1"}},
        "outputs": [{"path": "out.bin"}],
    });
    let id = stand.submit(&spec).await;
    let job = stand.end(id).await;
    assert_eq!((job.state, job.outputs.len()), (JobState::Succeeded, 1), "{job:?}");
    let refused = answered(&stand.server, "PUT /v1/artifacts", 413);
    assert!((1..=4).contains(&refused), "{refused} pieces were too large");
    let parts = answered(&stand.server, "PUT /v1/artifacts", 202);
    assert!((4..=20).contains(&parts), "{parts} parts");
    // What fits is remembered.
    let id = stand.submit(&spec).await;
    assert_eq!(stand.end(id).await.state, JobState::Succeeded);
    assert_eq!(answered(&stand.server, "PUT /v1/artifacts", 413), refused);
}

#[actix_rt::test]
async fn an_end_larger_than_the_proxy_takes_waits_for_it_and_holds_up_no_other() {
    let Some(stand) = Stand::lay().await else { return };
    let nginx_before = nginx(&stand, "64k").await;
    let machine = stand.network.machine("w1");
    let _worker = proxied_worker(&stand, &machine, &machine.folder().join("w")).await;
    let long = "n".repeat(200);
    let many = stand
        .submit(&json!({
            "workload": {"command": {"shell": format!("for i in $(seq 300); do echo $i > $i-{long}.out; done")}},
            "outputs": [{"path": "*.out"}],
        }))
        .await;
    let said = "takes no report of this size";
    stand.eventually("the warning", async || stand.said(&machine).contains(said).then_some(())).await;
    for _ in 0..3 {
        let other = stand.submit(&json!({"workload": {"command": {"argv": ["true"]}}})).await;
        assert_eq!(stand.end(other).await.state, JobState::Succeeded);
    }
    assert_eq!(stand.job(many).await.state, JobState::Running);
    nginx_before.terminate();
    let _nginx = nginx(&stand, "1m").await;
    let job = stand.end(many).await;
    assert_eq!((job.state, job.outputs.len()), (JobState::Succeeded, 300));
    assert_eq!(stand.said(&machine).matches(said).count(), 1, "it is said once");
}

#[actix_rt::test]
async fn a_proxy_without_its_server_is_waited_for() {
    let Some(mut stand) = Stand::lay().await else { return };
    let _nginx = nginx(&stand, "1m").await;
    let machine = stand.network.machine("w1");
    let worker = proxied_worker(&stand, &machine, &machine.folder().join("w")).await;
    stand.stop_serving();
    stand
        .eventually("pages of the proxy", async || {
            (answered(&stand.server, "/v1/worker/heartbeat", 502) >= 3).then_some(())
        })
        .await;
    let polls = answered(&stand.server, "/v1/worker/acquire", 502);
    assert!(polls < 15, "{polls} polls while there was nobody");
    stand.serve().await;
    let id = stand.submit(&json!({"workload": {"command": {"argv": ["true"]}}})).await;
    assert_eq!(stand.end(id).await.state, JobState::Succeeded);
    drop(worker);
}
