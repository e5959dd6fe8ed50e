//! temp
use microsandbox::{ExecEvent, Result, Sandbox};
use std::time::Instant;
fn main() -> Result<()> {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let s = Sandbox::builder("phases").ephemeral(true).replace(true).create().await?;
        s.fs()
            .copy_from_host(std::env::args().nth(1).unwrap(), "/usr/local/bin/static-true")
            .await?;
        let (mut a, mut b) = (vec![], vec![]);
        for _ in 0..2000 {
            let t = Instant::now();
            let mut e = s
                .exec_stream_with("/usr/local/bin/static-true", |c| {
                    c.stdin(microsandbox::Stdin::Closed)
                })
                .await?;
            a.push(t.elapsed());
            while let Some(ev) = e.next().await? {
                if let ExecEvent::Exited(_) = ev {
                    break;
                }
            }
            b.push(t.elapsed());
        }
        a.sort();
        b.sort();
        println!("started {:?} exited {:?}  p10 {:?} {:?}", a[1000], b[1000], a[200], b[200]);
        s.kill().await.map(drop)
    })
}
