/* Preloaded into a worker: its monotonic clock runs faster by TORTURE_RATE millionths, or slower. What waits until a moment of it
 * waits until that moment of the machine's clock at which this one shows it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define MILLION 1000000LL

static int (*machines_clock)(clockid_t, struct timespec *);
static long (*machines_call)(long, ...);
static long long begun, rate;

static long long nanos(const struct timespec *time) {
    return time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec in_parts(long long nanos) {
    struct timespec time = {nanos / SECOND, nanos % SECOND};
    return time;
}

__attribute__((constructor)) static void begin(void) {
    struct timespec now;
    const char *text = getenv("TORTURE_RATE");
    machines_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    machines_call = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    machines_clock(CLOCK_MONOTONIC, &now);
    begun = nanos(&now);
    rate = text ? atoll(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *answer) {
    if (!machines_clock) {
        begin();
    }
    int failed = machines_clock(clock, answer);
    if (!failed && clock == CLOCK_MONOTONIC) {
        long long since = nanos(answer) - begun;
        *answer = in_parts(begun + since + since * rate / MILLION);
    }
    return failed;
}

long syscall(long number, ...) {
    if (!machines_call) {
        begin();
    }
    va_list rest;
    long a[6];
    va_start(rest, number);
    for (int at = 0; at < 6; at++) {
        a[at] = va_arg(rest, long);
    }
    va_end(rest);
    struct timespec until;
    const struct timespec *shown = (const struct timespec *)a[3];
    int waits_until = number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && !(a[1] & FUTEX_CLOCK_REALTIME);
    if (waits_until && shown && nanos(shown) > begun) {
        until = in_parts(begun + (nanos(shown) - begun) * MILLION / (MILLION + rate));
        a[3] = (long)&until;
    }
    return machines_call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
