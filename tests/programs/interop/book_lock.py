"""A client on the book's lock functions, with only Python's standard library.

python3 tests/programs/interop/book_lock.py PORT reads one request per line and answers each with one line:
    acquire NAME WAIT                       an identifier, or none
    acquire_with_timeout NAME WAIT LEASE    an identifier, or none
    release NAME IDENTIFIER                 true or false
    count NAME NUMBER TIMES                 done
    look BUYER ITEM SELLER                  true or false: the first half of a purchase, which acquires the market's lock
    decide BUYER ITEM SELLER                done: the second half, which pays and releases
Times are milliseconds.
"""

import math
import socket
import sys
import time
import uuid


class Redis:
    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def ask(self, *words):
        words = [str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.stream.write(b"".join(parts))
        self.stream.flush()
        return self.answer()

    def answer(self):
        line = self.stream.readline()
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == "-1" else self.stream.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return None if rest == "-1" else [self.answer() for _ in range(int(rest))]
        raise RuntimeError(line.decode())


def acquire(redis, name, wait, lease=None):
    key = "lock:" + name
    identifier = str(uuid.uuid4())
    end = time.time() + wait
    while time.time() < end:
        is_ours = redis.ask("SETNX", key, identifier) == 1
        if lease is not None and (is_ours or redis.ask("TTL", key) < 0):
            redis.ask("EXPIRE", key, int(math.ceil(lease)))
        if is_ours:
            return identifier
        time.sleep(0.001)
    return None


def release(redis, name, identifier):
    key = "lock:" + name
    while True:
        redis.ask("WATCH", key)
        if redis.ask("GET", key) != identifier:
            redis.ask("UNWATCH")
            return False
        redis.ask("MULTI")
        redis.ask("DEL", key)
        if redis.ask("EXEC") is not None:
            return True


def count(redis, name, number, times):
    for _ in range(times):
        identifier = acquire(redis, name, 30, 10)
        redis.ask("SET", number, int(redis.ask("GET", number) or 0) + 1)
        if not release(redis, name, identifier):
            return "lost"
    return "done"


class Purchase:
    LOCK = "market:"

    def __init__(self, redis, buyer, item, seller):
        self.redis, self.buyer, self.item, self.seller = redis, buyer, item, seller
        self.identifier = acquire(redis, self.LOCK, 10)
        price = redis.ask("ZSCORE", "market:", item + "." + seller)
        funds = redis.ask("HGET", "users:" + buyer, "funds")
        self.price = None if price is None or float(price) > int(funds) else int(price)

    def decide(self):
        if self.price is not None:
            self.redis.ask("MULTI")
            self.redis.ask("HINCRBY", "users:" + self.seller, "funds", self.price)
            self.redis.ask("HINCRBY", "users:" + self.buyer, "funds", -self.price)
            self.redis.ask("SADD", "inventory:" + self.buyer, self.item)
            self.redis.ask("ZREM", "market:", self.item + "." + self.seller)
            self.redis.ask("EXEC")
        return "done" if release(self.redis, self.LOCK, self.identifier) else "lost"


def main():
    redis = Redis(int(sys.argv[1]))
    purchase = None
    for line in sys.stdin:
        request, name, *rest = line.split()
        if request == "look":
            purchase = Purchase(redis, name, *rest)
            answer = "false" if purchase.price is None else "true"
        elif request == "decide":
            answer = purchase.decide()
        elif request == "acquire":
            answer = acquire(redis, name, int(rest[0]) / 1000) or "none"
        elif request == "acquire_with_timeout":
            answer = acquire(redis, name, int(rest[0]) / 1000, int(rest[1]) / 1000) or "none"
        elif request == "release":
            answer = "true" if release(redis, name, rest[0]) else "false"
        else:
            answer = count(redis, name, rest[0], int(rest[1]))
        print(answer, flush=True)


if __name__ == "__main__":
    main()
