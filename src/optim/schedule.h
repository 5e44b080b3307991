/* Learning-rate and weight-decay schedules, counted in samples, as in Megatron-LM
 * core/optimizer_param_scheduler.py. The first update uses the schedules' values at 0 samples. */
#pragma once

#include "config/config.h"

/* Returns the learning rate after `samples` samples. max_lr and min_lr are --lr and --min-lr, or --decoupled-lr and
 * --decoupled-min-lr. */
double schedule_lr(const Config *, double max_lr, double min_lr, int64_t samples);
double schedule_weight_decay(const Config *, int64_t samples);
