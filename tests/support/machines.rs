//! Several machines on one host: each has its own network, name, boot, machine id, mounts and process numbers; they
//! meet at a switch in a namespace of its own, and the host's network is not touched. Everything ends with the value,
//! also after a panic, and with the test's process, also after a kill. Takes root, `ip`, `iptables`, `nsenter`,
//! `unshare`: where that is not to be had, a test fails and says why, unless
//! `GPULAYER_TESTS_WITHOUT_NAMESPACES=1` says that this is known.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The network in which the machines meet.
const NET: &str = "10.77.0";
/// The network behind the router.
const BEHIND: &str = "192.168.77";

/// A switch, and where its machines keep what they are.
pub struct Network {
    switch: Machine,
    folder: PathBuf,
    next: std::cell::Cell<u8>,
}

/// One machine. Ended when dropped, with all that runs on it.
pub struct Machine {
    holder: Holder,
    name: String,
    folder: PathBuf,
    address: String,
    /// What makes its network again after a reboot.
    wiring: Vec<Vec<String>>,
    /// The router it is behind, if it is behind one.
    router: Option<Box<Machine>>,
    switch: u32,
}

/// What keeps the namespaces alive.
struct Holder {
    child: Child,
    /// The first process inside, as this host numbers it.
    inside: u32,
    _ready: BufReader<ChildStdout>,
}

/// Which way nothing passes, as seen from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Both,
    In,
    Out,
}

/// A program on a machine. Killed when dropped.
pub struct Program {
    child: Child,
    pid: Option<u32>,
}

/// Whether tests with namespaces are to be left out; says so when they are.
pub fn left_out() -> bool {
    let out = std::env::var_os("GPULAYER_TESTS_WITHOUT_NAMESPACES").is_some_and(|value| value == "1");
    if out {
        eprintln!("NOT TESTED: told to do without network namespaces");
    }
    out
}

impl Network {
    /// An empty one, whose machines keep their files in `folder`.
    pub fn new(folder: &Path) -> Self {
        let switch = Machine {
            holder: Holder::start("switch", folder),
            name: "switch".to_owned(),
            folder: folder.to_owned(),
            address: String::new(),
            wiring: Vec::new(),
            router: None,
            switch: 0,
        };
        switch.run(&["ip", "link", "add", "br0", "type", "bridge"]);
        switch.run(&["ip", "link", "set", "br0", "up"]);
        Self { switch, folder: folder.to_owned(), next: std::cell::Cell::new(1) }
    }

    /// A machine at the switch.
    pub fn machine(&self, name: &str) -> Machine {
        let index = self.next.replace(self.next.get() + 1);
        let address = format!("{NET}.{index}");
        let wiring = words(&[&["ip", "addr", "add", &format!("{address}/24"), "dev", "eth0"]]);
        let machine = Machine::start(&self.folder, name, address, wiring, self.switch.holder.inside);
        machine.plug_in();
        machine
    }

    /// A machine behind a router that lets it out under the router's own address.
    pub fn machine_behind_nat(&self, name: &str) -> Machine {
        let router = self.machine(&format!("{name}-router"));
        let address = format!("{BEHIND}.2");
        let wiring = words(&[
            &["ip", "addr", "add", &format!("{address}/24"), "dev", "eth0"],
            &["ip", "link", "set", "eth0", "up"],
            &["ip", "route", "add", "default", "via", &format!("{BEHIND}.1")],
        ]);
        let mut machine = Machine::start(&self.folder, name, address, wiring, router.holder.inside);
        machine.router = Some(Box::new(router));
        machine.plug_in();
        machine
    }
}

fn words(lines: &[&[&str]]) -> Vec<Vec<String>> {
    lines.iter().map(|line| line.iter().map(|word| (*word).to_owned()).collect()).collect()
}

impl Machine {
    fn start(folder: &Path, name: &str, address: String, wiring: Vec<Vec<String>>, switch: u32) -> Self {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("machine-id"), format!("{:032x}\n", number())).unwrap();
        std::fs::write(folder.join("boot-id"), format!("boot-{:032x}\n", number())).unwrap();
        let holder = Holder::start(name, &folder);
        Self { holder, name: name.to_owned(), folder, address, wiring, router: None, switch }
    }

    /// Connects it to its switch, or to its router.
    fn plug_in(&self) {
        let (port, inside) = (format!("v-{}", self.name), self.holder.inside.to_string());
        let at_switch = |words: &[&str]| run_in(self.switch, words);
        at_switch(&["ip", "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &inside]);
        match &self.router {
            None => at_switch(&["ip", "link", "set", &port, "master", "br0", "up"]),
            Some(router) => {
                router.run(&["ip", "addr", "add", &format!("{BEHIND}.1/24"), "dev", &port]);
                router.run(&["ip", "link", "set", &port, "up"]);
                router.run(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
                let masquerade =
                    ["iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE"];
                router.run(&masquerade);
            }
        }
        for line in &self.wiring {
            self.run(&line.iter().map(String::as_str).collect::<Vec<_>>());
        }
        self.run(&["ip", "link", "set", "eth0", "up"]);
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where others reach it; behind a router nobody does.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its own folder, which outlives its reboots.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Another program on it; see [`Machine::start_program`] for how it ends.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.holder.inside.to_string();
        command.args(["-t", &target, "-n", "-m", "-u", "-p", "--"]).arg(program);
        command
    }

    /// Starts what [`Machine::command`] made.
    pub fn start_program(&self, command: &mut Command) -> Program {
        let mut child = command.spawn().unwrap();
        let pid = until("the program to start", || {
            let ended = child.try_wait().unwrap().is_some();
            child_of(child.id()).map(Some).or(ended.then_some(None))
        });
        Program { child, pid }
    }

    /// Runs something to its good end.
    pub fn run(&self, words: &[&str]) {
        run_in(self.holder.inside, words);
    }

    /// Nothing passes any more, without a word to anybody.
    pub fn cut(&self, way: Way) {
        let at = self.router.as_deref().unwrap_or(self);
        for (chain, ways) in [("INPUT", [Way::Both, Way::In]), ("OUTPUT", [Way::Both, Way::Out])] {
            if ways.contains(&way) {
                // At a router, what is forwarded passes neither of the two.
                let device = if chain == "INPUT" { "-i" } else { "-o" };
                let chain = if self.router.is_some() { "FORWARD" } else { chain };
                at.run(&["iptables", "-w", "-I", chain, device, "eth0", "-j", "DROP"]);
            }
        }
    }

    /// So many of a hundred packets are lost, each way.
    pub fn lose(&self, percent: u32) {
        let share = format!("0.{percent:02}");
        for (chain, device) in [("INPUT", "-i"), ("OUTPUT", "-o")] {
            let rule = ["-m", "statistic", "--mode", "random", "--probability", &share, "-j", "DROP"];
            self.run(&[&["iptables", "-w", "-I", chain, device, "eth0"][..], &rule].concat());
        }
    }

    /// Whatever is sent is answered with a reset.
    pub fn reset(&self) {
        let reset = ["-j", "REJECT", "--reject-with", "tcp-reset"];
        self.run(&[&["iptables", "-w", "-I", "OUTPUT", "-o", "eth0", "-p", "tcp"][..], &reset].concat());
    }

    /// Everything passes again.
    pub fn heal(&self) {
        if let Some(router) = &self.router {
            router.run(&["iptables", "-w", "-F", "FORWARD"]);
        }
        self.run(&["iptables", "-w", "-F"]);
    }

    /// Power off: all that runs there ends at once. Its files stay.
    pub fn power_off(&mut self) {
        self.holder.end();
        // Its cable goes with its network, a moment later.
        let port = format!("v-{}", self.name);
        let gone = || {
            let target = self.switch.to_string();
            let shown = ["-t", &target, "-n", "--", "ip", "link", "show", &port];
            let shown =
                Command::new("nsenter").args(shown).stdout(Stdio::null()).stderr(Stdio::null()).status();
            (!shown.unwrap().success()).then_some(())
        };
        until("the cable to go", gone);
    }

    /// Power on after [`Machine::power_off`]: another boot of the same machine.
    pub fn power_on(&mut self) {
        std::fs::write(self.folder.join("boot-id"), format!("boot-{:032x}\n", number())).unwrap();
        self.holder = Holder::start(&self.name, &self.folder);
        self.plug_in();
    }

    /// Makes it a copy of another one, as the same disk image would: the same machine id, its own boot.
    pub fn pose_as(&self, other: &Machine) {
        let id = std::fs::read(other.folder.join("machine-id")).unwrap();
        std::fs::write(self.folder.join("machine-id"), id).unwrap();
    }
}

impl Holder {
    fn start(name: &str, folder: &Path) -> Self {
        // bash reaps what the machine's orphans leave, as an init does. Files that are bound stay the same files when
        // they are written anew.
        let script = r#"hostname "$1"
            [ ! -e "$2/boot-id" ] || mount --bind "$2/boot-id" /proc/sys/kernel/random/boot_id
            [ ! -e "$2/machine-id" ] || [ ! -e /etc/machine-id ] || mount --bind "$2/machine-id" /etc/machine-id
            ip link set lo up && echo ready
            while :; do sleep 1000 & wait; done"#;
        let unshare =
            ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(unshare)
            .args(["bash", "-c", script, "machine", name])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv and unshare (package util-linux) are there");
        let mut ready = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        ready.read_line(&mut line).unwrap();
        assert_eq!(
            line.trim(),
            "ready",
            "this test needs network namespaces and cannot have them. Run it as root, with iproute2 and iptables \
             installed, or set GPULAYER_TESTS_WITHOUT_NAMESPACES=1 to leave such tests out"
        );
        let inside = until("the machine's first process", || child_of(child.id()));
        Self { child, inside, _ready: ready }
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The kernel ends everything in a process namespace with its first process; its network goes a moment later.
        until("the machine to go", || (!alive(self.inside)).then_some(()));
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.end();
    }
}

impl Program {
    /// SIGTERM; how it ended.
    pub fn terminate(mut self) -> Option<std::process::ExitStatus> {
        self.end("-TERM")
    }

    /// Waits for its own end.
    pub fn wait(mut self) -> std::process::ExitStatus {
        let ended = until("a program's own end", || self.child.try_wait().unwrap());
        self.pid = None;
        ended
    }

    pub fn is_up(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    fn end(&mut self, signal: &str) -> Option<std::process::ExitStatus> {
        let pid = self.pid.take()?;
        // By number: the one we started is not reaped before `nsenter` has seen its end.
        let _ = Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status();
        Some(self.child.wait().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end("-KILL");
    }
}

fn run_in(inside: u32, words: &[&str]) {
    let target = inside.to_string();
    // Its network alone: pids in these words are this host's.
    let ran = Command::new("nsenter").args(["-t", &target, "-n", "--"]).args(words).output().unwrap();
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn number() -> u128 {
    rand::random()
}

fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_ascii_whitespace().next()?.parse().ok()
}

fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(40), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
