#include "models/option_map.h"

Activation map_activation(MlpActivation x) {
    static const Activation MAP[] = {
        [MLP_GELU_TANH] = ACT_GELU_TANH,   [MLP_GELU_ERF] = ACT_GELU_ERF,
        [MLP_QUICK_GELU] = ACT_QUICK_GELU, [MLP_SQUARED_RELU] = ACT_SQUARED_RELU,
        [MLP_SWIGLU] = ACT_SWIGLU,         [MLP_GEGLU_TANH] = ACT_GEGLU_TANH,
        [MLP_GEGLU_ERF] = ACT_GEGLU_ERF,
    };
    return MAP[x];
}

AttentionSink map_softmax(SoftmaxType x) {
    static const AttentionSink MAP[] = {
        [SOFTMAX_VANILLA] = SINK_NONE, [SOFTMAX_OFF_BY_ONE] = SINK_ONE, [SOFTMAX_LEARNABLE] = SINK_LEARNED};
    return MAP[x];
}

BranchNorms map_norms(NormPlacement x) {
    static const BranchNorms MAP[] = {
        [PLACE_PRE] = NORM_INPUT, [PLACE_POST] = NORM_OUTPUT, [PLACE_SANDWICH] = NORM_BOTH};
    return MAP[x];
}

RouterScore map_score(RouterScoreFunction x) {
    static const RouterScore MAP[] = {
        [SCORE_SOFTMAX] = ROUTER_TOPK_SOFTMAX, [SCORE_SIGMOID] = ROUTER_SIGMOID};
    return MAP[x];
}

QuantFormat map_fp8_format(Fp8Format x) {
    static const QuantFormat MAP[] = {
        [FP8_NONE] = QUANT_OFF, [FP8_E4M3] = QUANT_E4M3, [FP8_HYBRID] = QUANT_HYBRID};
    return MAP[x];
}

QuantRecipe map_fp8_recipe(Fp8Recipe x) {
    static const QuantRecipe MAP[] = {[FP8_DELAYED] = QUANT_DELAYED,
                                      [FP8_TENSORWISE] = QUANT_TENSORWISE,
                                      [FP8_BLOCKWISE] = QUANT_BLOCKWISE};
    return MAP[x];
}

GemmTuning map_gemm_tuning(GemmTuningOption x) {
    static const GemmTuning MAP[] = {[TUNING_SAME_BITS] = GEMM_TUNING_SAME_BITS,
                                     [TUNING_FASTEST] = GEMM_TUNING_FASTEST,
                                     [TUNING_OFF] = GEMM_TUNING_OFF};
    return MAP[x];
}

double map_loss_coeff(const Config *c, const Derived *d, RouterLoss loss) {
    static const LoadBalancing MAP[] = {[ROUTER_LOSS_AUX] = BALANCE_AUX,
                                        [ROUTER_LOSS_SEQ_AUX] = BALANCE_SEQ_AUX,
                                        [ROUTER_LOSS_GLOBAL_AUX] = BALANCE_GLOBAL_AUX};
    return loss == ROUTER_LOSS_Z ? f64_or(c->moe_z_loss_coeff, 0) : d->aux_loss_coeff[MAP[loss]];
}
