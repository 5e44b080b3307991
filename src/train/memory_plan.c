#include "train/memory_plan.h"

#include "base/host_memory.h"
#include "train/trainer.h"

MemoryPlan memory_plan_new(const Config *c, const Derived *d, Comm *comm, const Device *target) {
    Trainer *r = trainer_new(c, d, NULL, comm, target ? device_null_for(target) : device_null());
    AttentionLog attention = {""};
    PipelineSpec spec;
    executor_trace(r->executor, attention_log, &attention);
    const RankSchedule schedule = trainer_dry_run(r, &spec);
    MemoryPlan plan = {
        .parameters = registry_bytes(r->model->registry) + (r->sync ? sync_bytes(r->sync) : 0),
        .optimizer = optim_bytes(r->optimizer),
        .tables = states_bytes(r->model->registry),
        .unit = executor_peak(r->executor),
        .inputs = microbatches_bytes(r->microbatches),
        .scratch = r->device->scratch,
        .attention = attention,
        .discrete = device_is_discrete(target),
    };
    if (c->save && c->async_save)
        plan.snapshot = (size_t)r->model->registry->elements * dtype_size(r->model->registry->precise) +
                        (c->save_optim ? plan.optimizer : 0);
    plan.balanced = r->layout.mesh.size[AXIS_EP] > 1 && !f64_is_set(c->moe_expert_capacity_factor);
    plan.transient = plan.unit.transient;
    plan.offloaded = plan.unit.offload.host;
    /* In balance a rank has as many rows as it sends: the most that can come are those of all ranks. */
    plan.offloaded_most = plan.offloaded * (plan.balanced ? (size_t)r->layout.mesh.size[AXIS_EP] : 1);
    plan.slots =
        executor_bytes(r->executor, &schedule, spec.kind == SCHEDULE_ZERO_BUBBLE, plan.unit) - plan.transient;
    trainer_free(r);
    return plan;
}

size_t memory_plan_total(const MemoryPlan *p) {
    return p->parameters + p->optimizer + p->slots + p->transient + p->tables + p->inputs + p->scratch +
           (p->discrete ? 0 : p->offloaded + p->snapshot);
}

size_t memory_plan_host(const MemoryPlan *p) { return p->discrete ? p->offloaded + p->snapshot : 0; }

Err memory_plan_check_host(const MemoryPlan *p, int64_t ranks) {
    const double MB = 1.0 / (1 << 20), need = (double)memory_plan_host(p) * (double)ranks,
                 have = (double)host_memory_available("");
    if (need <= have) return ERR_OK;
    return err_user("offloaded activations (%.1f MB) and the copy of a checkpoint (%.1f MB) of every rank "
                    "need %.1f MB of the "
                    "host's memory and %.1f MB are available; lower --cpu-offloading-num-layers or "
                    "--micro-batch-size, or "
                    "leave out --async-save",
                    (double)p->offloaded * MB, (double)p->snapshot * MB, need * MB, have * MB);
}
