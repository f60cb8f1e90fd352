"""The book's lock functions, by a plain socket: a line asks, a line answers."""
import socket, sys, time, uuid

port = int(sys.argv[1].rstrip("/").rsplit(":", 1)[1])


class Conn:
    def __init__(self):
        self.sock = socket.create_connection(("127.0.0.1", port), 0.5)
        self.file = self.sock.makefile("rb")

    def ask(self, *words):
        text = b"*%d\r\n" % len(words)
        for word in words:
            word = str(word).encode()
            text += b"$%d\r\n%s\r\n" % (len(word), word)
        self.sock.sendall(text)
        return self.read()

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise OSError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.file.read(length + 2)[:-2].decode()
        if kind == b"*":
            length = int(rest)
            return None if length < 0 else [self.read() for _ in range(length)]
        return rest.decode()


def acquire_lock_with_timeout(conn, lockname, acquire_timeout=0.2, lock_timeout=1):
    identifier = str(uuid.uuid4())
    lockname = "lock:" + lockname
    end = time.time() + acquire_timeout
    while time.time() < end:
        if conn.ask("SETNX", lockname, identifier):
            conn.ask("EXPIRE", lockname, lock_timeout)
            return identifier
        if conn.ask("TTL", lockname) < 0:
            conn.ask("EXPIRE", lockname, lock_timeout)
        time.sleep(0.001)
    return "none"


def release_lock(conn, lockname, identifier):
    lockname = "lock:" + lockname
    while True:
        conn.ask("WATCH", lockname)
        if conn.ask("GET", lockname) != identifier:
            conn.ask("UNWATCH")
            return False
        conn.ask("MULTI")
        conn.ask("DEL", lockname)
        if conn.ask("EXEC") is not None:
            return True


conn = Conn()
for line in sys.stdin:
    words = line.split()
    if words[0] == "acquire":
        print(acquire_lock_with_timeout(conn, words[1]), flush=True)
    else:
        print("true" if release_lock(conn, words[1], words[2]) else "false", flush=True)
