/* Maps option choices to enums in lower-level modules, which do not depend on options. */
#pragma once

#include "config/config.h"
#include "data/dataset.h"
#include "data/task_set.h"
#include "models/stack.h"
#include "nn/attention.h"
#include "nn/router.h"
#include "ops/fp8.h"
#include "tensor/device.h"

DatasetId map_dataset(const Config *); /* the dataset on which the model is trained */
TaskFormat map_task(TaskKind);         /* passing TASK_NONE is a bug */
/* Passing MLP_GELU is a bug, because Derived.activation never has this value. */
Activation map_activation(MlpActivation);
AttentionSink map_softmax(SoftmaxType);
BranchNorms map_norms(NormPlacement, ModelFamily);
RouterScore map_score(RouterScoreFunction);
unsigned map_offloaded_modules(const Config *); /* a mask of OffloadModule */
QuantFormat map_fp8_format(Fp8Format);
QuantRecipe map_fp8_recipe(Fp8Recipe);
DType map_quantization(Quantization); /* the type of quantized weights; F64 if there are none */
DType map_storage(Lane);              /* the type of activations and weights */
DeviceKind map_device(DeviceOption);
GemmTuning map_gemm_tuning(GemmTuningOption);
/* Returns the specification for a rank's device. */
DeviceSpec map_device_spec(const Config *, int rank);
/* Returns --moe-aux-loss-coeff or --moe-z-loss-coeff. A value of 0 disables the loss. */
double map_loss_coeff(const Config *, RouterLoss);
