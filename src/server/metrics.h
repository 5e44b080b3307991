/* The text of GET /metrics, which Prometheus reads. The names are those of vLLM, where it has them. */
#pragma once

#include "base/str.h"
#include "server/queue.h"

void metrics_print(const QueueCounts *, Str *out);
