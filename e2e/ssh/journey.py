import hashlib, io, os, sys, time
import paramiko

client = paramiko.SSHClient()
client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
client.connect("127.0.0.1", int(sys.argv[1]), "root", key_filename=sys.argv[2],
               allow_agent=False, look_for_keys=False)

# A command: streams apart, exit code, stdin to its end.
stdin, stdout, stderr = client.exec_command("cat; echo err >&2; exit 5")
stdin.write("hello")
stdin.channel.shutdown_write()
assert stdout.read() == b"hello" and stderr.read() == b"err\n"
assert stdout.channel.recv_exit_status() == 5

# SFTP: a large file, names, links, attributes, a directory.
sftp = client.open_sftp()
sftp.mkdir("/tmp/p")
data = os.urandom(1 << 20) * 20
sftp.putfo(io.BytesIO(data), "/tmp/p/big")
back = io.BytesIO()
sftp.getfo("/tmp/p/big", back)
assert hashlib.sha256(back.getvalue()).digest() == hashlib.sha256(data).digest()
assert sftp.stat("/tmp/p/big").st_size == len(data)
sftp.symlink("big", "/tmp/p/link")
assert sftp.readlink("/tmp/p/link") == "big"
assert sftp.normalize("/tmp/../tmp/p") == "/tmp/p"
sftp.chmod("/tmp/p/big", 0o600)
assert sftp.stat("/tmp/p/link").st_mode & 0o777 == 0o600
sftp.rename("/tmp/p/big", "/tmp/p/other")
assert sorted(sftp.listdir("/tmp/p")) == ["link", "other"]
with sftp.open("/tmp/p/other", "r+") as file:
    file.seek(100)
    file.write(b"X" * 10)
    file.seek(95)
    assert file.read(10) == data[95:100] + b"XXXXX"
sftp.remove("/tmp/p/other")
sftp.remove("/tmp/p/link")
sftp.rmdir("/tmp/p")
try:
    sftp.stat("/tmp/p")
    raise AssertionError("it is still there")
except FileNotFoundError:
    pass

# A terminal.
shell = client.invoke_shell(term="xterm", width=91, height=33)
shell.send(b"stty size; echo done-$((1+1))\n")
said, until = b"", time.time() + 60
while b"done-2" not in said and time.time() < until:
    said += shell.recv(4096)
assert b"33 91" in said, said
shell.resize_pty(width=71, height=23)
shell.send(b"stty size; echo done-$((1+2))\n")
while b"done-3" not in said and time.time() < until:
    said += shell.recv(4096)
assert b"23 71" in said, said
shell.close()

# A connection to something inside.
server = ("import socket\ns=socket.create_server(('127.0.0.1',8001))\nprint('up',flush=True)\n"
          "c,_=s.accept()\nc.sendall(c.recv(9)[::-1])\nc.close()")
_, stdout, _ = client.exec_command(f"python3 -c \"{server}\"")
assert stdout.readline() == "up\n"
channel = client.get_transport().open_channel("direct-tcpip", ("127.0.0.1", 8001), ("127.0.0.1", 1))
channel.sendall(b"abcdefghi")
assert channel.recv(100) == b"ihgfedcba"
channel.close()
try:
    client.get_transport().open_channel("direct-tcpip", ("127.0.0.1", 1), ("127.0.0.1", 1))
    raise AssertionError("no server listens there")
except paramiko.ChannelException:
    pass
client.close()
print("all well")
