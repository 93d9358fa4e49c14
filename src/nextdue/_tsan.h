/* Force-included where the extensions are built with -fsanitize=thread: the interpreter is not, so a lock that is
 * waited for in it would be invisible, and all that it guards would be reported. */
#include <Python.h>

void __tsan_acquire(void *address);
void __tsan_release(void *address);

static inline void nextdue_tsan_lock(PyMutex *mutex) {
    PyMutex_Lock(mutex);
    __tsan_acquire(mutex);
}

static inline void nextdue_tsan_unlock(PyMutex *mutex) {
    __tsan_release(mutex);
    PyMutex_Unlock(mutex);
}

#undef PyMutex_Lock
#undef PyMutex_Unlock
#define PyMutex_Lock nextdue_tsan_lock
#define PyMutex_Unlock nextdue_tsan_unlock
