#include "tensor/call.h"

#include <stdio.h>

#include "base/fault.h"
#include "tensor/backend.h"

void call_run(const OpDef *op, const Call *c) {
    FaultScope *scope = fault_scope_now();
    char *op_name = scope ? scope->op : NULL;
    if (op_name) snprintf(op_name, sizeof scope->op, "%s", op->name);
    c->device->backend->run(op, c);
    if (op_name) *op_name = 0;
}

const char *call_path(const OpDef *op, const Call *c) {
    return c->device->backend->path ? c->device->backend->path(op, c) : NULL;
}
