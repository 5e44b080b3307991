/* A build of the program that simulates a faulty machine. The program itself needs no hook, because functions are
 * replaced with ld --wrap.
 *   FAULTY="gemm RANK N"    flips a bit in the result of every Nth GEMM of a rank
 *   FAULTY="crash RANK N"   ends the process in the Nth GEMM of a rank
 *   FAULTY="count RANK N"   makes count_zeros return N too few on a rank; on a CPU only
 *   FAULTY="slow RANK MS"   delays each GEMM of a rank by MS milliseconds
 *   FAULTY="tuning RANK N"  aborts if a device is opened with another GemmTuning than number N
 *   FAULTY="open RANK MS"   delays the opening of a rank's device by MS milliseconds
 *   FAULTY="memory RANK N"  sets one bit to 1 in each copy of more than N bytes on a rank's device; on a CPU only */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "tensor/call.h"

typedef struct Fault {
    char kind[16];
    int rank, number;
} Fault;

static Fault planted(void) {
    Fault f = {.kind = ""};
    const char *text = getenv("FAULTY");
    CHECK(!text || sscanf(text, "%15s %d %d", f.kind, &f.rank, &f.number) == 3,
          "FAULTY is not \"kind rank number\"");
    return f;
}

static bool is_here(const Fault *f, const char *kind) {
    const FaultScope *scope = fault_scope_now();
    int rank = -1;
    if (scope) sscanf(scope->where, "rank %d", &rank);
    return !strcmp(f->kind, kind) && rank == f->rank;
}

static void flip(Device *d, unsigned char *at, unsigned char bits) {
    unsigned char here;
    if (!device_is_discrete(d)) {
        *at ^= bits;
        return;
    }
    device_copy(d, &here, at, 1);
    device_wait(d);
    here ^= bits;
    device_copy(d, at, &here, 1);
    device_wait(d);
}

void __real_call_run(const OpDef *, const Call *);
void __wrap_call_run(const OpDef *, const Call *);

void __wrap_call_run(const OpDef *op, const Call *c) {
    static _Thread_local int calls;
    const Fault f = planted();
    __real_call_run(op, c);
    if (op->number == OP_count_zeros && is_here(&f, "count")) *(int64_t *)c->out[0]->data -= f.number;
    if (op->number != OP_linear || c->device->kind == DEVICE_NULL) return;
    if (is_here(&f, "slow")) {
        device_wait(c->device); /* otherwise the delay would overlap with the GPU's computation */
        usleep((useconds_t)f.number * 1000);
    }
    if (is_here(&f, "crash") && ++calls == f.number) abort();
    if (is_here(&f, "gemm") && ++calls % f.number == 0)
        flip(c->device, (unsigned char *)c->out[0]->data + 100, 0x10);
}

Err __real_device_open(const DeviceSpec *, Device **);
Err __wrap_device_open(const DeviceSpec *, Device **);

Err __wrap_device_open(const DeviceSpec *spec, Device **out) {
    const Fault f = planted();
    CHECK(strcmp(f.kind, "tuning") || (int)spec->gemm_tuning == f.number, "a device is opened with tuning %d",
          (int)spec->gemm_tuning);
    if (is_here(&f, "open")) usleep((useconds_t)f.number * 1000);
    return __real_device_open(spec, out);
}

void __real_device_copy(Device *, void *to, const void *from, size_t bytes);
void __wrap_device_copy(Device *, void *to, const void *from, size_t bytes);

void __wrap_device_copy(Device *d, void *to, const void *from, size_t bytes) {
    const Fault f = planted();
    __real_device_copy(d, to, from, bytes);
    if (is_here(&f, "memory") && bytes > (size_t)f.number) ((unsigned char *)to)[f.number] |= 1;
}
