//! Addresses of hosts, and which of them belong to the Internet.

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::Pin;

type Found<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Finds the addresses of a domain.
pub(super) trait Resolve: Debug + Send + Sync {
    fn resolve<'a>(&'a self, domain: &'a str) -> Found<'a>;
}

/// As the system resolves names.
#[derive(Debug)]
pub(super) struct System;

impl Resolve for System {
    fn resolve<'a>(&'a self, domain: &'a str) -> Found<'a> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((domain, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Those that another resolver finds and that anybody on the Internet could reach.
#[derive(Debug)]
pub(super) struct Public<R>(pub R);

impl<R: Resolve> Resolve for Public<R> {
    fn resolve<'a>(&'a self, domain: &'a str) -> Found<'a> {
        Box::pin(async move {
            let mut found = self.0.resolve(domain).await?;
            found.retain(|address| is_public(*address));
            Ok(found)
        })
    }
}

/// By the registries of special addresses (RFC 6890 and what IANA added to it).
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let special = match address.octets() {
        // This network, loopback, multicast and what is reserved.
        [0 | 127 | 224..=255, ..] => true,
        // Carriers, and protocols.
        [100, 64..=127, ..] | [192, 0, 0, _] => true,
        // Relays to IPv6, which lead into it, and benchmarks.
        [192, 88, 99, _] | [198, 18 | 19, ..] => true,
        _ => address.is_private() || address.is_link_local() || address.is_documentation(),
    };
    !special
}

/// Global unicast without those that carry an IPv4 address, which would have to be looked at as well, and without
/// protocols and examples.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let special = match address.segments() {
        // Protocols, Teredo among them; examples; 6to4.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => true,
        // Segment routing.
        [0x5f00, ..] => true,
        [first, ..] => first & 0xe000 != 0x2000,
    };
    !special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_own_networks_are_not_public() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00:1450::1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
