#include "models/option_map.h"

#include "base/fault.h"

/* One row of a map. The build fails if a choice has no row (-Wswitch). */
#define TO(choice, value)                                                                                    \
    case choice:                                                                                             \
        return value

DatasetId map_dataset(const Config *c) {
    if (c->task != TASK_NONE) return DATASET_task;
    if (c->fim_data) return DATASET_fim;
    switch (c->model) {
#define FAMILY(name) TO(MODEL_##name, DATASET_##name);
#include "config/families.def"
#undef FAMILY
    }
    return 0;
}

TaskFormat map_task(TaskKind x) {
    switch (x) {
    case TASK_NONE: /* the rules reject TASK_NONE */
        CHECK(false, "there is no task");
        TO(TASK_MNLI, TASK_FORMAT_MNLI);
        TO(TASK_QQP, TASK_FORMAT_QQP);
        TO(TASK_RACE, TASK_FORMAT_RACE);
        TO(TASK_LABELS, TASK_FORMAT_LABELS);
    }
    return 0;
}

Activation map_activation(MlpActivation x) {
    switch (x) {
    case MLP_GELU: /* config_finish replaces MLP_GELU with a specific form */
        CHECK(false, "the activation is not resolved");
        TO(MLP_GELU_TANH, ACT_GELU_TANH);
        TO(MLP_GELU_ERF, ACT_GELU_ERF);
        TO(MLP_QUICK_GELU, ACT_QUICK_GELU);
        TO(MLP_SQUARED_RELU, ACT_SQUARED_RELU);
        TO(MLP_RELU, ACT_RELU);
        TO(MLP_XIELU, ACT_XIELU);
        TO(MLP_SWIGLU, ACT_SWIGLU);
        TO(MLP_GEGLU_TANH, ACT_GEGLU_TANH);
        TO(MLP_GEGLU_ERF, ACT_GEGLU_ERF);
        TO(MLP_QUICK_GEGLU, ACT_QUICK_GEGLU);
    }
    return 0;
}

AttentionSink map_softmax(SoftmaxType x) {
    switch (x) {
        TO(SOFTMAX_VANILLA, SINK_NONE);
        TO(SOFTMAX_OFF_BY_ONE, SINK_ONE);
        TO(SOFTMAX_LEARNABLE, SINK_LEARNED);
    }
    return 0;
}

BranchNorms map_norms(NormPlacement x, ModelFamily family) {
    switch (x) {
        TO(PLACE_PRE, NORM_INPUT);
        TO(PLACE_POST, family == MODEL_bert ? NORM_SUM : NORM_OUTPUT);
        TO(PLACE_SANDWICH, NORM_BOTH);
    }
    return 0;
}

static unsigned offloaded_module(OffloadedModule x) {
    switch (x) {
        TO(OFFLOADED_ATTN_NORM, 1u << OFFLOAD_ATTN_NORM);
        TO(OFFLOADED_MLP_NORM, 1u << OFFLOAD_MLP_NORM);
        TO(OFFLOADED_QKV_LINEAR, 1u << OFFLOAD_QKV_LINEAR);
        TO(OFFLOADED_CORE_ATTN, 1u << OFFLOAD_CORE_ATTN);
        TO(OFFLOADED_ATTN_PROJ, 0); /* the output of core_attn */
        TO(OFFLOADED_EXPERT_FC1, 1u << OFFLOAD_EXPERT_FC1);
        TO(OFFLOADED_MOE_ACT, 1u << OFFLOAD_MOE_ACT);
    }
    return 0;
}

unsigned map_offloaded_modules(const Config *c) {
    unsigned modules = 0;
    for (int64_t i = 0; c->fine_grained_activation_offloading && i < c->offload_modules.count; i++)
        modules |=
            offloaded_module((OffloadedModule)enum_find(OffloadedModule_spellings, c->offload_modules.at[i]));
    return modules;
}

RouterScore map_score(RouterScoreFunction x) {
    switch (x) {
        TO(SCORE_SOFTMAX, ROUTER_TOPK_SOFTMAX);
        TO(SCORE_SIGMOID, ROUTER_SIGMOID);
        TO(SCORE_SQRTSOFTPLUS, ROUTER_SQRTSOFTPLUS);
        TO(SCORE_SPARSEMIXER, ROUTER_SPARSEMIXER);
    }
    return 0;
}

QuantFormat map_fp8_format(Fp8Format x) {
    switch (x) {
        TO(FP8_NONE, QUANT_OFF);
        TO(FP8_E4M3, QUANT_E4M3);
        TO(FP8_HYBRID, QUANT_HYBRID);
    }
    return 0;
}

QuantRecipe map_fp8_recipe(Fp8Recipe x) {
    switch (x) {
        TO(FP8_DELAYED, QUANT_DELAYED);
        TO(FP8_TENSORWISE, QUANT_TENSORWISE);
        TO(FP8_BLOCKWISE, QUANT_BLOCKWISE);
    }
    return 0;
}

DType map_quantization(Quantization x) {
    switch (x) {
        TO(QUANTIZATION_NONE, F64);
        TO(QUANTIZATION_FP8, F8E4M3);
        TO(QUANTIZATION_INT8, I8);
    }
    return F64;
}

GemmTuning map_gemm_tuning(GemmTuningOption x) {
    switch (x) {
        TO(TUNING_SAME_BITS, GEMM_TUNING_SAME_BITS);
        TO(TUNING_FASTEST, GEMM_TUNING_FASTEST);
        TO(TUNING_OFF, GEMM_TUNING_OFF);
    }
    return 0;
}

DType map_storage(Lane x) {
    switch (x) {
        TO(LANE_FP32, F32);
        TO(LANE_FP64, F64);
        TO(LANE_BF16, BF16);
        TO(LANE_FP16, F16);
        TO(LANE_EXACT, F64);
    }
    return 0;
}

DeviceKind map_device(DeviceOption x) {
    switch (x) {
        TO(ON_CPU, DEVICE_CPU);
        TO(ON_CUDA, DEVICE_CUDA);
    }
    return 0;
}

DeviceSpec map_device_spec(const Config *c, int rank) {
    return (DeviceSpec){.kind = map_device(c->device),
                        .rank = rank,
                        .threads = (int)c->derived.cpu_threads,
                        .any_order = !c->deterministic_mode,
                        .gemm_tuning = map_gemm_tuning(c->gemm_tuning),
                        .gemm_sm_margin = c->gemm_sm_margin};
}

double map_loss_coeff(const Config *c, RouterLoss loss) {
    static const LoadBalancing MAP[] = {[ROUTER_LOSS_AUX] = BALANCE_AUX,
                                        [ROUTER_LOSS_SEQ_AUX] = BALANCE_SEQ_AUX,
                                        [ROUTER_LOSS_GLOBAL_AUX] = BALANCE_GLOBAL_AUX};
    return loss == ROUTER_LOSS_Z ? f64_or(c->moe_z_loss_coeff, 0) : c->derived.aux_loss_coeff[MAP[loss]];
}
