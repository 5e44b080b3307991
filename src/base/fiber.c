#include "base/fiber.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN
#elif __has_feature(thread_sanitizer)
#define FIBER_TSAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN
#elif defined(__SANITIZE_THREAD__)
#define FIBER_TSAN
#endif

#ifdef FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

enum { STACK_BYTES = 8 << 20 }; /* as large as a thread's stack, because GPU libraries run on this stack */

struct Fiber {
    ucontext_t own, caller;
    char *memory; /* a guard page, followed by the stack */
    size_t page;
    FiberFn *fn;
    void *arg;
    bool begun; /* true if the function has started and has not ended */
#ifdef FIBER_ASAN
    void *own_fake, *caller_fake;
    const void *caller_stack;
    size_t caller_bytes;
#endif
#ifdef FIBER_TSAN
    void *own_tsan, *caller_tsan;
#endif
};

/* Four functions report stack switches to sanitizers. Call a leave function before the switch, and an enter function
 * after it, on the other stack. */
static void leave_caller(Fiber *f) {
    (void)f;
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&f->caller_fake, f->memory + f->page, STACK_BYTES);
#endif
#ifdef FIBER_TSAN
    f->caller_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(f->own_tsan, 0);
#endif
}

static void enter_fiber(Fiber *f) {
    (void)f;
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(f->own_fake, &f->caller_stack, &f->caller_bytes);
#endif
}

static void leave_fiber(Fiber *f, bool ends) {
    (void)f, (void)ends;
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(ends ? NULL : &f->own_fake, f->caller_stack, f->caller_bytes);
#endif
#ifdef FIBER_TSAN
    __tsan_switch_to_fiber(f->caller_tsan, 0);
#endif
}

static void enter_caller(Fiber *f) {
    (void)f;
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(f->caller_fake, NULL, NULL);
#endif
}

/* Runs a fiber's function. makecontext passes ints, so the pointer is split into two ints. */
static void run(unsigned high, unsigned low) {
    Fiber *f = (Fiber *)(uintptr_t)((uint64_t)high << 32 | low);
    enter_fiber(f);
    f->fn(f->arg);
    f->begun = false;
    leave_fiber(f, true);
    setcontext(&f->caller);
    CHECK(false, "a fiber cannot return to its caller");
}

Fiber *fiber_new(void) {
    Fiber *f = mem_zero(1, sizeof *f);
    f->page = (size_t)sysconf(_SC_PAGESIZE);
    f->memory = mmap(NULL, f->page + STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    CHECK(f->memory != MAP_FAILED && !mprotect(f->memory, f->page, PROT_NONE),
          "there is no memory for a fiber's stack");
#ifdef FIBER_TSAN
    f->own_tsan = __tsan_create_fiber(0);
#endif
    return f;
}

void fiber_free(Fiber *f) {
    if (!f) return;
    CHECK(!f->begun, "a fiber is freed while its function is paused");
#ifdef FIBER_TSAN
    __tsan_destroy_fiber(f->own_tsan);
#endif
    munmap(f->memory, f->page + STACK_BYTES);
    free(f);
}

void fiber_begin(Fiber *f, FiberFn *fn, void *arg) {
    const uint64_t self = (uintptr_t)f;
    CHECK(!f->begun, "a fiber is started while its function is paused");
    f->fn = fn, f->arg = arg, f->begun = true;
#ifdef FIBER_ASAN
    f->own_fake = NULL;
#endif
    CHECK(!getcontext(&f->own), "there is no context for a fiber");
    f->own.uc_stack = (stack_t){.ss_sp = f->memory + f->page, .ss_size = STACK_BYTES};
    f->own.uc_link = NULL;
    makecontext(&f->own, (void (*)(void))run, 2, (unsigned)(self >> 32), (unsigned)self);
}

bool fiber_resume(Fiber *f) {
    CHECK(f->begun, "a fiber that has ended is resumed");
    leave_caller(f);
    CHECK(!swapcontext(&f->caller, &f->own), "a fiber cannot be resumed");
    enter_caller(f);
    return f->begun;
}

void fiber_pause(Fiber *f) {
    leave_fiber(f, false);
    CHECK(!swapcontext(&f->own, &f->caller), "a fiber cannot be paused");
    enter_fiber(f);
}
