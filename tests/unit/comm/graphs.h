/* A CPU device that supports graphs. NCCL tasks that a graph has recorded run when the graph is launched; streams that
 * wait for the device also wait for these tasks. A graph may be launched only once. */
#pragma once

#include "base/host_stream.h"
#include "base/mem.h"
#include "tensor/backend.h"

struct DeviceGraph {
    struct {
        void (*run)(void *arg);
        void *arg;
    } task[8];
    int n;
    HostStream *stream; /* runs the tasks */
};

static _Thread_local struct {
    DeviceGraph *recorded, *launched; /* NULL: none */
    void (*add)(HostStream *, void (*run)(void *arg), void *arg);
} graphs;

static void add_or_record(HostStream *s, void (*run)(void *arg), void *arg) {
    DeviceGraph *g = graphs.recorded;
    if (g)
        g->task[g->n].run = run, g->task[g->n++].arg = arg;
    else
        graphs.add(s, run, arg);
}

static DeviceStream *graphs_stream_new(Device *d) {
    DeviceStream *s = device_cpu_backend.stream_new(d);
    HostStream *host = device_cpu_backend.stream_handle(s);
    graphs.add = host->add;
    host->add = add_or_record;
    return s;
}

static void wait_for_stream(void *s) { host_stream_wait(s, host_stream_end(s)); }

static void graphs_stream_follow(Device *d, DeviceStream *s) {
    (void)d;
    if (graphs.launched && !graphs.recorded)
        graphs.add(device_cpu_backend.stream_handle(s), wait_for_stream, graphs.launched->stream);
}

static void graphs_wait(Device *d) {
    (void)d;
    if (graphs.launched) wait_for_stream(graphs.launched->stream);
}

static void graphs_begin(Device *d) {
    (void)d;
    graphs.recorded = mem_zero(1, sizeof *graphs.recorded);
    graphs.recorded->stream = host_stream_new();
}

static DeviceGraph *graphs_end(Device *d) {
    DeviceGraph *g = graphs.recorded;
    (void)d;
    graphs.recorded = NULL;
    return g;
}

static void graphs_launch(Device *d, DeviceGraph *g) {
    (void)d;
    for (int i = 0; i < g->n; i++) graphs.add(g->stream, g->task[i].run, g->task[i].arg);
    graphs.launched = g;
}

/* It must be called when no stream waits for the graph. */
static void graphs_free(Device *d, DeviceGraph *g) {
    (void)d;
    graphs.launched = NULL;
    host_stream_free(g->stream);
    free(g);
}

static DeviceBackend cpu_with_graphs(void) {
    DeviceBackend b = device_cpu_backend;
    b.stream_new = graphs_stream_new, b.stream_follow = graphs_stream_follow, b.wait = graphs_wait;
    b.graph_begin = graphs_begin, b.graph_end = graphs_end;
    b.graph_launch = graphs_launch, b.graph_free = graphs_free;
    return b;
}

/* ---- programs ---- */

/* Records an all-reduce over all ranks; their communicator must be open. */
static DeviceGraph *record_all_reduce(Comm *c) {
    static _Thread_local float
        out[64]; /* static, because the operation runs after this function has returned */
    CommCall call = small_call(c, COMM_ALL_REDUCE, "recorded");
    call.out = out;
    comm_run(c, &call);
    device_wait(world_device);
    device_graph_begin(world_device);
    comm_run(c, &call);
    return device_graph_end(world_device);
}

static void launch_graph(Comm *c, DeviceGraph *g) {
    device_graph_launch(world_device, g);
    comm_launched(c, "the graph");
}
