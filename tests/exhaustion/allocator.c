/* To be preloaded: an allocator that runs out of memory when it is told to.
 *
 * exhaust(nth, least, times): of the allocations of `least` bytes or more that this thread makes from now on, the nth
 * (from 0) fails and those after it, `times` in all. relent(): no more do; returns how many have failed.
 *
 * exhaust_everywhere(nth): of the allocations that all threads make from now on, but for those of threads that called
 * spare(), the nth fails, and no other. relent_everywhere(): none does; returns whether it has failed. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

/* A sanitizer's, where one is loaded. */
#define WEAK __attribute__((weak))
extern WEAK void *__interceptor_malloc(size_t);
extern WEAK void *__interceptor_calloc(size_t, size_t);
extern WEAK void *__interceptor_realloc(void *, size_t);
#define BEHIND(name) (__interceptor_##name ? __interceptor_##name : __libc_##name)

/* Found without a call: the sanitizer's __tls_get_addr does not work as early as its malloc does. */
#define OWN static __thread __attribute__((tls_model("initial-exec")))
OWN long before_failure = -1, failures_left, failures;
OWN size_t least_size;

void exhaust(long nth, size_t least, long times)
{
    failures = 0;
    least_size = least;
    failures_left = times;
    before_failure = nth;
}

long relent(void)
{
    before_failure = -1;
    return failures;
}

static volatile long before_failure_everywhere = -1, failures_everywhere;
OWN int spared;

void spare(int on)
{
    spared = on;
}

void exhaust_everywhere(long nth)
{
    failures_everywhere = 0;
    before_failure_everywhere = nth;
}

long relent_everywhere(void)
{
    before_failure_everywhere = -1;
    return failures_everywhere;
}

static int fails_everywhere(void)
{
    if (before_failure_everywhere < 0 || spared || __atomic_fetch_sub(&before_failure_everywhere, 1, __ATOMIC_SEQ_CST) != 0)
        return 0;
    failures_everywhere = 1;
    errno = ENOMEM;
    return 1;
}

static int fails(size_t size)
{
    if (fails_everywhere())
        return 1;
    if (before_failure < 0 || size < least_size)
        return 0;
    if (before_failure > 0) {
        before_failure--;
        return 0;
    }
    if (failures_left-- <= 0) {
        before_failure = -1;
        return 0;
    }
    failures++;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return fails(size) ? NULL : BEHIND(malloc)(size); }
void *calloc(size_t n, size_t size) { return fails(n * size) ? NULL : BEHIND(calloc)(n, size); }
void *realloc(void *p, size_t size) { return fails(size) ? NULL : BEHIND(realloc)(p, size); }
