//! The network interface of an address, by whose name gloo and NCCL are told where to talk.

use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::SockaddrStorage;

/// The interface that has this address, or one whose network it is in, as with `127.0.0.2`.
pub fn of(address: IpAddr) -> Option<String> {
    let interfaces: Vec<InterfaceAddress> = getifaddrs().ok()?.collect();
    let has = |interface: &&InterfaceAddress| ip(interface.address) == Some(address);
    let reaches = |interface: &&InterfaceAddress| {
        let (own, mask) = (ip(interface.address), ip(interface.netmask));
        own.zip(mask).is_some_and(|(own, mask)| {
            masked(own, mask).is_some_and(|own| Some(own) == masked(address, mask))
        })
    };
    let found = interfaces
        .iter()
        .find(has)
        .or_else(|| interfaces.iter().find(reaches));
    found.map(|interface| interface.interface_name.clone())
}

fn ip(address: Option<SockaddrStorage>) -> Option<IpAddr> {
    let address = address?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

/// The network part; none where address and mask are of different kinds.
fn masked(address: IpAddr, mask: IpAddr) -> Option<u128> {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => {
            Some((address.to_bits() & mask.to_bits()).into())
        }
        (IpAddr::V6(address), IpAddr::V6(mask)) => Some(address.to_bits() & mask.to_bits()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_loopback_are_on_one_interface() {
        let loopback = of("127.0.0.1".parse().unwrap());
        assert!(
            loopback
                .as_deref()
                .is_some_and(|name| name.starts_with("lo"))
        );
        assert_eq!(of("127.0.0.3".parse().unwrap()), loopback);
        assert_eq!(of("203.0.113.9".parse().unwrap()), None);
    }
}
