//! What this machine is called and where others may reach it, as far as the machine itself can tell.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Addresses of documentation: nobody has them, and nothing is sent to them.
const ELSEWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// Names of this machine: its host name, and the full one where the hosts file has it.
pub fn names() -> Vec<String> {
    let own = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let mut names = full_names(&hosts, &own);
    names.insert(0, own);
    names.dedup();
    names.retain(|name| !name.is_empty() && name.is_ascii());
    names
}

/// Names with a dot that stand in one line of the hosts file with the host name.
fn full_names(hosts: &str, own: &str) -> Vec<String> {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let of_mine =
        lines.filter(|line| line.split_whitespace().skip(1).any(|name| name.eq_ignore_ascii_case(own)));
    let names = of_mine.flat_map(|line| line.split_whitespace().skip(1));
    let mut names: Vec<_> = names
        .filter(|name| name.contains('.') && !name.starts_with("localhost"))
        .map(str::to_lowercase)
        .filter(|name| name != own)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Addresses of this machine's interfaces that reach further than a cable.
pub fn addresses() -> Vec<IpAddr> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let mut addresses: Vec<_> = interfaces.iter().map(if_addrs::Interface::ip).filter(is_reachable).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

fn is_reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => !four.is_loopback() && !four.is_link_local() && !four.is_unspecified(),
        IpAddr::V6(six) => !six.is_loopback() && !six.is_unicast_link_local() && !six.is_unspecified(),
    }
}

/// The address this machine shows to others: the one its default route starts from.
pub fn outward_address() -> Option<IpAddr> {
    ELSEWHERE.iter().find_map(|elsewhere| {
        let elsewhere: SocketAddr = elsewhere.parse().ok()?;
        let any: IpAddr = if elsewhere.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
        // Connecting a UDP socket asks for the route and sends nothing.
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(elsewhere).ok()?;
        socket.local_addr().ok().map(|own| own.ip()).filter(is_reachable)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_tells_full_names() {
        let hosts = "127.0.0.1 localhost localhost.localdomain\n\
                     10.0.0.7 box.lab.example BOX # mine\n\
                     10.0.0.8 other.lab.example other\n#10.0.0.9 no.example box\n";
        assert_eq!(full_names(hosts, "box"), ["box.lab.example"]);
        assert!(full_names(hosts, "elsewhere").is_empty());
    }

    #[test]
    fn no_address_is_one_that_only_this_machine_understands() {
        assert!(addresses().iter().all(is_reachable));
        assert!(outward_address().iter().all(is_reachable));
        for near in ["127.0.0.1", "169.254.1.1", "::1", "fe80::1", "0.0.0.0"] {
            assert!(!is_reachable(&near.parse().unwrap()), "{near}");
        }
    }
}
