# The first process of a world that a test run makes for itself: a machine ("home") on which msb
# runs, and an internet that is one cable away. Nothing of it is seen by the machine that runs the
# tests, and all of it ends with this process, which ends with its stdin.
#
# Begun as root with network, mount and PID namespaces of its own, in the world's directory.
set -eu
umask 022
here=$PWD
mkdir -p log

# What a usual distribution has and this machine may not: a tun device for all users.
mkdir -p nodes
mount -t tmpfs -o mode=755 none nodes
mknod -m 666 nodes/tun c 10 200
mount --bind nodes/tun /dev/net/tun
echo 'nameserver 127.0.0.1' >resolv.conf
mount --bind resolv.conf /etc/resolv.conf

# The cable.
touch internet
unshare --net mount --bind /proc/self/ns/net internet
outside() { nsenter --net="$here/internet" -- "$@"; }
echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6
outside sh -c 'echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6'
ip link add uplink type veth peer name cable
ip link set cable netns "$here/internet"

ip link set lo up
ip link set uplink up
outside ip link set lo up
outside ip link set cable up
ip address add 198.51.100.2/24 dev uplink
ip address add 192.168.77.2/24 dev uplink
ip address add 2001:db8:1::2/64 dev uplink nodad
outside ip address add 198.51.100.1/24 dev cable
outside ip address add 192.168.77.1/24 dev cable
outside ip address add 2001:db8:1::1/64 dev cable nodad
ip route add default via 198.51.100.1
ip route add default via 2001:db8:1::1
# As systemd does it everywhere: every user may ping.
echo '0 2147483647' >/proc/sys/net/ipv4/ping_group_range

# Servers on the internet.
for last in 10 11 12 13 14 15 16 17 18 19 20 21 22; do
    outside ip address add "203.0.113.$last/32" dev lo
done
for address in 198.51.100.53 198.51.100.54 10.9.9.9 10.9.9.10 172.16.9.9 100.64.0.9 \
    169.254.169.254 169.254.9.9 169.254.42.42 169.254.0.23 169.254.42.7 100.100.100.200 \
    168.63.129.16 192.0.0.192; do
    outside ip address add "$address/32" dev lo
done
# The last three lead to 203.0.113.10 and to the machine itself, through translators.
for address in 2001:db8::10 2001:db8::20 fd00:9::9 fd00:ec2::254 fd20:ce::254 fd00:42::42 \
    64:ff9b::cb00:710a 2002:cb00:710a::1 64:ff9b::c633:6402; do
    outside ip address add "$address/128" dev lo nodad
done

# A CA, certificates that it signed, and a self-signed one.
openssl_quietly() { openssl "$@" 2>>log/openssl.log; }
new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
# shellcheck disable=SC2086
{
    openssl_quietly req -x509 -days 2 $new -keyout ca.key -out ca.pem -subj '/CN=world authority'
    openssl_quietly req -x509 -days 2 $new -keyout untrusted.key -out untrusted.pem \
        -subj '/CN=untrusted.example.com' -addext 'subjectAltName=DNS:untrusted.example.com'
    openssl_quietly req $new -keyout server.key -out server.csr -subj '/CN=world'
    openssl_quietly req $new -keyout evil.key -out evil.csr -subj '/CN=evil'
}
sign() {
    echo "subjectAltName=$2" >names
    openssl_quietly x509 -req -days 2 -in "$1.csr" -out "$1.pem" -CA ca.pem -CAkey ca.key \
        -CAcreateserial -extfile names
}
sign server 'DNS:*.example.com,DNS:*.wild.example.org,IP:203.0.113.10,IP:127.0.0.1'
sign evil 'DNS:evil.example.net'
cp ca.pem inside/ca.pem

# What there is to fetch: a page, a repository, a package.
mkdir -p www pypi/simple/tiny-world git
echo 'hello from the web' >www/index.html
echo 'hello from the list' >www/list.txt
git init -q --bare git/project.git
git -C git/project.git config http.receivepack true
git init -q -b main checkout
echo 'hello from git' >checkout/README
git -C checkout add README
git -C checkout -c user.name=w -c user.email=w@example.com commit -q -m first
git -C checkout push -q "$here/git/project.git" main
git -C git/project.git symbolic-ref HEAD refs/heads/main
python3 wheel.py pypi/simple/tiny-world

sed "s|@HERE@|$here|g" nginx.conf.in >nginx.conf
fcgiwrap -s "unix:$here/fcgi.sock" 2>log/fcgiwrap.log &
outside python3 servers.py outside >log/outside.log 2>&1 &
python3 servers.py home >log/home.log 2>&1 &
dnsmasq --conf-file="$here/dnsmasq.conf" --pid-file="$here/dnsmasq.pid" --user=root \
    --log-queries --log-facility="$here/log/dns.log"
until [ -e outside.ready ] && [ -e home.ready ]; do sleep 0.02; done
outside nginx -p "$here" -c "$here/nginx.conf" -e "$here/log/nginx.log"
touch ready
exec cat >/dev/null
