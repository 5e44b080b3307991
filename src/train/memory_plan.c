#include "train/memory_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/host_memory.h"
#include "base/machine.h"
#include "base/mem.h"
#include "comm/agree.h"
#include "run/launch.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

const char *const MEMORY_TITLES[MEMORY_PART_COUNT] = {
#define X(name, title) [MEMORY_##name] = title,
    MEMORY_PARTS(X)
#undef X
};

static int64_t held_parameters(const Registry *r) {
    int64_t n = 0;
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        if (!(p->spec.flags & PARAM_BUFFER)) n += param_filled_rows(p) * p->columns;
    }
    return n;
}

/* Returns whether the run will use NCCL. Ranks that share a GPU communicate through host memory instead. A plan
 * without a target device assumes a separate GPU for each rank. */
static bool uses_nccl(const Trainer *r, const MemoryPlan *plan, const Device *target, const Comm *real) {
    const bool shares = target && !comm_is_null(real) && comm_processes() == 1 &&
                        target->n_devices < r->run.layout.mesh.world;
    return plan->discrete && !shares && r->run.config->distributed_backend == DISTRIBUTED_NCCL;
}

static void plan_communicators(const Trainer *r, const Device *target, const Comm *real, MemoryPlan *plan) {
    sync_plan(r->sync, r->run.comm);
    executor_plan(r->executor, r->run.comm);
    plan->communicators = comm_communicators(r->run.comm, false);
    if (uses_nccl(r, plan, target, real))
        plan->part[MEMORY_gathered] +=
            comm_device_bytes(r->run.comm, (int)r->run.config->gemm_sm_margin, comm_ranks_of_host(real));
}

static MemoryPlan plan_of(const Config *c, Comm *comm, const Device *target, double experts_share) {
    Comm *notes = comm ? comm_null(comm_world(comm), comm_rank(comm)) : NULL;
    Trainer *r = trainer_new(c, NULL, notes, target ? device_null_for(target) : device_null());
    const Registry *all = r->run.model->registry;
    MemoryPlan plan = {.discrete = target ? device_is_discrete(target) : c->device != ON_CPU,
                       .held = held_parameters(all)};
    PipelineSpec spec;
    r->run.context.experts_share = experts_share;
    executor_trace(r->executor, attention_log, &plan.attention);
    const RankSchedule schedule = trainer_dry_run(r, &spec);
    const size_t ranks = (size_t)r->run.layout.mesh.size[AXIS_EP];
    plan.in_flight = schedule.slots * pipeline_unit(c);
    plan.unit = executor_peak(r->executor);
    plan.balanced = ranks > 1 && !f64_is_set(c->moe_expert_capacity_factor);
    size_t *part = plan.part;
    part[MEMORY_parameters] = registry_value_bytes(all);
    part[MEMORY_gradients] = registry_flat_bytes(all, FLAT_GRADS);
    part[MEMORY_optimizer] = registry_flat_bytes(all, FLAT_MASTERS) + optim_bytes(r->optimizer);
    part[MEMORY_transient] = plan.unit.transient * (size_t)c->interleaved_microbatches;
    part[MEMORY_slots] =
        executor_bytes(r->executor, &schedule, spec.kind == SCHEDULE_ZERO_BUBBLE, plan.unit) -
        part[MEMORY_transient];
    part[MEMORY_gathered] = r->sync ? sync_bytes(r->sync) : 0;
    part[MEMORY_tables] = states_bytes(all);
    part[MEMORY_inputs] = microbatches_bytes(r->microbatches);
    part[MEMORY_scratch] = r->run.device->scratch;
    part[MEMORY_snapshot] = c->save && c->async_save ? trainer_save_bytes(r) : 0;
    part[MEMORY_offloaded] = executor_host_bytes(&plan.unit);
    part[MEMORY_offloaded_state] =
        registry_offloaded_bytes(all, FLAT_MASTERS) + optim_offloaded_bytes(r->optimizer);
    if (notes) plan_communicators(r, target, comm, &plan);
    trainer_free(r);
    if (notes) comm_free(notes);
    return plan;
}

MemoryPlan memory_plan_new(const Config *c, Comm *comm, const Device *target) {
    /* Random routing rarely gives a rank's experts more than 1/64 above their share. Even one row more makes a tensor too
     * large for the memory of a freed tensor with an equal share. */
    return plan_of(c, comm, target, 1 + 1.0 / 64);
}

void memory_plan_worst(MemoryPlan *p, const Config *c, Comm *comm, const Device *target) {
    if (!p->balanced) return;
    const MemoryPlan worst = plan_of(c, comm, target, INFINITY);
    memcpy(p->most, worst.part, sizeof p->most);
}

/* ---- totals ---- */

static bool is_on_host(const MemoryPlan *p, int part) { return p->discrete && part >= MEMORY_snapshot; }

static size_t sum_of(const MemoryPlan *p, const size_t *part, bool on_host) {
    size_t sum = 0;
    for (int i = 0; i < MEMORY_PART_COUNT; i++)
        if (is_on_host(p, i) == on_host) sum += part[i];
    return sum;
}

size_t memory_plan_total(const MemoryPlan *p) { return sum_of(p, p->part, false); }

size_t memory_plan_most(const MemoryPlan *p) { return sum_of(p, p->most, false); }

size_t memory_plan_host(const MemoryPlan *p) { return sum_of(p, p->part, true); }

size_t memory_plan_state(const MemoryPlan *p) {
    return p->part[MEMORY_parameters] + p->part[MEMORY_gradients] + p->part[MEMORY_optimizer];
}

/* Ranks that run as threads share this machine's devices; at most `sharing` ranks use one device. For host
 * memory, the sum is exact. For a discrete device, the sum assumes that all ranks on the device need as much
 * memory as this rank. */
MemoryPlan memory_plan_together(const MemoryPlan *own, const Device *device, Comm *comm) {
    const int64_t sharing = rank_sharing(comm, device);
    MemoryPlan p = *own;
    if (!comm || comm_processes() > 1) return p;
    double sum[MEMORY_PART_COUNT];
    for (int i = 0; i < MEMORY_PART_COUNT; i++) sum[i] = (double)own->part[i];
    comm_all_reduce(comm, comm_everyone(comm), "memory plan", COMM_SUM, F64, sum, MEMORY_PART_COUNT);
    for (int i = 0; i < MEMORY_PART_COUNT; i++)
        p.part[i] = p.discrete && !is_on_host(&p, i) ? own->part[i] * (size_t)sharing : (size_t)sum[i];
    return p;
}

/* Returns a hash of the host name and the boot id. Containers on one machine, which have separate limits, have
 * different host names. Machines with the same host name have different boot ids. */
static uint64_t host_of_process(void) {
    char name[MACHINE_TEXT] = "";
    Str boot = {0};
    machine_host(name);
    const Err e = file_read("/proc/sys/kernel/random/boot_id", &boot);
    const uint64_t host = hash64(boot.s, e.code ? 0 : boot.len, hash_name(name));
    str_free(&boot);
    return host;
}

MemoryPlan memory_plan_of_host(const MemoryPlan *own, Comm *comm) {
    typedef struct Share {
        uint64_t host, part[MEMORY_PART_COUNT];
    } Share;
    MemoryPlan p = *own;
    Share mine = {.host = host_of_process()}, *all = mem_zero((size_t)comm_world(comm), sizeof *all);
    for (int i = 0; i < MEMORY_PART_COUNT; i++) mine.part[i] = own->part[i];
    comm_run(comm, &(CommCall){.kind = COMM_ALL_GATHER,
                               .dtype = U8,
                               .group = comm_everyone(comm),
                               .site = "memory plan",
                               .in = &mine,
                               .out = all,
                               .n = sizeof mine});
    for (int i = 0; i < MEMORY_PART_COUNT; i++) {
        if (p.discrete && !is_on_host(&p, i)) continue;
        p.part[i] = 0;
        for (int r = 0; r < comm_world(comm); r++)
            if (all[r].host == mine.host) p.part[i] += all[r].part[i];
    }
    free(all);
    return p;
}

/* ---- text ---- */

static void describe_part(const MemoryPlan *p, int part, Str *out) {
    str_printf(out, "%s %s", MEMORY_TITLES[part], bytes_text((double)p->part[part]).s);
    if (p->most[part] > p->part[part]) str_printf(out, " (at most %s)", bytes_text((double)p->most[part]).s);
}

void memory_plan_describe(const MemoryPlan *p, Str *out) {
    for (int i = 0; i < MEMORY_PART_COUNT; i++) {
        if (!p->part[i] || is_on_host(p, i)) continue;
        describe_part(p, i, out);
        str_puts(out, ", ");
    }
    str_printf(out, "total %s", bytes_text((double)memory_plan_total(p)).s);
    if (memory_plan_most(p) > memory_plan_total(p))
        str_printf(out, " (at most %s, if all tokens are sent to this rank's experts)",
                   bytes_text((double)memory_plan_most(p)).s);
    for (int i = 0; i < MEMORY_PART_COUNT; i++) {
        if (!p->part[i] || !is_on_host(p, i)) continue;
        str_puts(out, "; in the host's memory ");
        describe_part(p, i, out);
    }
}

static Err check_host(const MemoryPlan *p) {
    const size_t need = memory_plan_host(p), have = host_memory_available("");
    if (need <= have) return ERR_OK;
    return err_user(
        "offloaded activations (%s), offloaded optimizer state (%s) and the copy of a checkpoint (%s) "
        "together need %s of host memory, but only %s are available; lower "
        "--cpu-offloading-num-layers, --micro-batch-size or --optimizer-offload-fraction, or remove "
        "--async-save",
        bytes_text((double)p->part[MEMORY_offloaded]).s,
        bytes_text((double)p->part[MEMORY_offloaded_state]).s, bytes_text((double)p->part[MEMORY_snapshot]).s,
        bytes_text((double)need).s, bytes_text((double)have).s);
}

Err memory_plan_check(const MemoryPlan *p, size_t available) {
    const size_t need = memory_plan_total(p), state = memory_plan_state(p);
    if (need <= available) return check_host(p);
    const BytesText have = bytes_text((double)available);
    if (state > available)
        return err_user("parameters, main gradients and optimizer state already need %s of memory, but only "
                        "%s are available. Choose a smaller model, or shard it over more devices: 'isotron "
                        "plan --search --device-memory-gib N' finds layouts that fit.",
                        bytes_text((double)state).s, have.s);
    return err_user(
        "the run needs %s of memory (%s for parameters, main gradients and optimizer state, %s for "
        "activations), but only %s are available; lower --micro-batch-size%s, or recompute activations with "
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        bytes_text((double)need).s, bytes_text((double)state).s,
        bytes_text((double)(p->part[MEMORY_slots] + p->part[MEMORY_transient])).s, have.s,
        p->discrete ? ", offload activations with --cpu-offloading-num-layers" : "");
}

Err memory_plan_fits(const MemoryPlan *own, const Device *device, Comm *comm) {
    const size_t available = device_memory_available(device);
    MemoryPlan all = memory_plan_together(own, device, comm);
    if (comm && comm_processes() > 1) all = memory_plan_of_host(&all, comm);
    return comm_agree(comm, memory_plan_check(&all, available));
}
