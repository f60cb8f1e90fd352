"""A client on the book's semaphores, with only Python's standard library.

python3 tests/programs/interop/book_semaphore.py PORT reads one request per line and answers each with one line:
    acquire NAME LIMIT TIMEOUT WAY                      an identifier, or none; WAY is basic, fair or with_lock
    release NAME IDENTIFIER                             true or false
    release_fair NAME IDENTIFIER                        true or false
    refresh_fair NAME IDENTIFIER                        true or false
    storm NAME LIMIT TIMEOUT WAY INSIDE TIMES           the most holders at a time
Times are milliseconds. A storm acquires and releases this many times, and counts its holders in the key INSIDE.
"""

import sys
import time
import uuid

import book_lock


class Redis(book_lock.Redis):
    def together(self, *commands):
        self.ask("MULTI")
        for command in commands:
            self.ask(*command)
        return self.ask("EXEC")


def acquire(redis, name, limit, timeout):
    mine, now = str(uuid.uuid4()), time.time()
    _, _, rank = redis.together(
        ("ZREMRANGEBYSCORE", name, "-inf", now - timeout),
        ("ZADD", name, now, mine),
        ("ZRANK", name, mine),
    )
    if rank < limit:
        return mine
    redis.ask("ZREM", name, mine)
    return None


def release(redis, name, identifier):
    return redis.ask("ZREM", name, identifier) == 1


def acquire_fair(redis, name, limit, timeout):
    mine, now, owner = str(uuid.uuid4()), time.time(), name + ":owner"
    _, _, number = redis.together(
        ("ZREMRANGEBYSCORE", name, "-inf", now - timeout),
        ("ZINTERSTORE", owner, 2, owner, name, "WEIGHTS", 1, 0),
        ("INCR", name + ":counter"),
    )
    _, _, rank = redis.together(
        ("ZADD", name, now, mine),
        ("ZADD", owner, number, mine),
        ("ZRANK", owner, mine),
    )
    if rank < limit:
        return mine
    release_fair(redis, name, mine)
    return None


def release_fair(redis, name, identifier):
    removed, _ = redis.together(("ZREM", name, identifier), ("ZREM", name + ":owner", identifier))
    return removed == 1


def refresh_fair(redis, name, identifier):
    if redis.ask("ZADD", name, time.time(), identifier) == 1:
        release_fair(redis, name, identifier)
        return False
    return True


def acquire_with_lock(redis, name, limit, timeout):
    lock = book_lock.acquire(redis, name, 0.01)
    if lock is None:
        return None
    try:
        return acquire_fair(redis, name, limit, timeout)
    finally:
        book_lock.release(redis, name, lock)


ACQUIRE = {"basic": acquire, "fair": acquire_fair, "with_lock": acquire_with_lock}


def storm(redis, name, limit, timeout, way, inside, times):
    leave = release if way == "basic" else release_fair
    most, held, end = 0, 0, time.time() + 60
    while held < times:
        if time.time() > end:
            return "%d of %d permits in a minute" % (held, times)
        identifier = ACQUIRE[way](redis, name, limit, timeout)
        if identifier is None:
            time.sleep(0.001)
            continue
        held += 1
        most = max(most, redis.ask("INCR", inside))
        time.sleep(0.001)
        redis.ask("DECR", inside)
        if not leave(redis, name, identifier):
            return "a permit was lost"
    return most


def main():
    redis = Redis(int(sys.argv[1]))
    for line in sys.stdin:
        request, name, *rest = line.split()
        if request == "acquire":
            answer = ACQUIRE[rest[2]](redis, name, int(rest[0]), int(rest[1]) / 1000) or "none"
        elif request == "storm":
            limit, timeout, way, inside, times = rest
            answer = storm(redis, name, int(limit), int(timeout) / 1000, way, inside, int(times))
        else:
            does = {"release": release, "release_fair": release_fair, "refresh_fair": refresh_fair}
            answer = "true" if does[request](redis, name, rest[0]) else "false"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
