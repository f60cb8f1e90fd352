"""Purchases under an item lock with redis-py, command by command as the book has them.

For each line on its input, of the milliseconds to go on for and the number of the first item, it says how many it made and how many
a second that is.
"""

import sys
import time
import uuid

import redis

MARKET = "market:"


def acquire(conn, lock):
    token = str(uuid.uuid4())
    if not conn.setnx(lock, token):
        sys.exit("the lock is held")
    conn.expire(lock, 10)
    return token


def release(conn, lock, token):
    with conn.pipeline(True) as pipe:
        pipe.watch(lock)
        if pipe.get(lock) != token:
            sys.exit("the lock is lost")
        pipe.multi()
        pipe.delete(lock)
        pipe.execute()


def purchase(conn, buyer, item, seller):
    member = f"{item}.{seller}"
    lock = f"lock:{MARKET}{member}"
    token = acquire(conn, lock)
    with conn.pipeline(True) as pipe:
        pipe.zscore(MARKET, member)
        pipe.hget(f"users:{buyer}", "funds")
        price, funds = pipe.execute()
        if price is None or int(price) > int(funds):
            sys.exit("it cannot be bought")
        pipe.hincrby(f"users:{seller}", "funds", int(price))
        pipe.hincrby(f"users:{buyer}", "funds", -int(price))
        pipe.sadd(f"inventory:{buyer}", item)
        pipe.zrem(MARKET, member)
        pipe.execute()
    release(conn, lock, token)


def main():
    conn = redis.Redis.from_url(sys.argv[1], decode_responses=True)
    for line in sys.stdin:
        millis, item = map(int, line.split())
        first, started = item, time.monotonic()
        while (took := time.monotonic() - started) * 1000 < millis:
            purchase(conn, "buyer", f"item{item}", "seller")
            item += 1
        print(item - first, (item - first) / took, flush=True)


main()
