/* Loaded into a process with LD_PRELOAD: its system time is wrong by the seconds in the file $WRONG_CLOCK, which may
   change while it runs. Spans are not touched: the monotonic clock is right. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long wrong_s(void) {
    static long known;
    static time_t looked = -1;
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC_COARSE, &now);
    time_t tenth = now.tv_sec * 10 + now.tv_nsec / 100000000;
    const char *path = tenth != looked ? getenv("WRONG_CLOCK") : NULL;
    if (path != NULL) {
        char text[32] = {0};
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0) known = strtol(text, NULL, 10);
            close(file);
        }
        looked = tenth;
    }
    return known;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += wrong_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed && now != NULL) now->tv_sec += wrong_s();
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
