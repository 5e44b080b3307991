"""Runs PyTorch code entirely in float64, even if the code requests another precision, and verifies this.

Hugging Face models request other types explicitly in some places: float32 in norms, softmax and rotary tables, and
bfloat16 in xIELU. `Float64` replaces each requested type with float64. It raises an error if the result of any
operation, forward or backward, has another floating-point dtype."""
import platform

import numpy
import safetensors
import torch
import transformers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


# Bloom's GELU has a constant with only 8 digits.
transformers.models.bloom.modeling_bloom.BloomGelu = lambda: torch.nn.GELU(approximate="tanh")


class _Promote(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        def promote(value):
            return torch.float64 if any(value is x for x in (torch.float32, torch.bfloat16)) else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(promote, args), **{k: promote(v) for k, v in (kwargs or {}).items()})


class _Refuse(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
                raise TypeError(f"{func} returned {leaf.dtype}: the oracle must be float64 throughout")
        return result


class Float64:
    """A context manager. It also sets the number of threads and the algorithms, so that a second run is bitwise
    equal."""

    def __enter__(self):
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.set_default_dtype(torch.float64)
        self.modes = [_Refuse(), _Promote()]
        for mode in self.modes:
            mode.__enter__()

    def __exit__(self, *error):
        for mode in reversed(self.modes):
            mode.__exit__(*error)
        torch.set_default_dtype(torch.float32)


def kind(config):
    """Returns the class in transformers whose logits are compared."""
    nested = hasattr(config, "text_config") and config.model_type != "llama4"  # Llama 4 fails without an image
    if "bert" in config.model_type or nested:
        return getattr(transformers, config.architectures[0])
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def make(config, **how):
    make = getattr(kind(config), "from_config", None) or kind(config)._from_config
    model = make(config, **how)
    if not getattr(config, "scale_decoder_outputs", True):  # T5 v1.1, whose weights transformers 5 always ties
        model.lm_head = torch.nn.Linear(config.d_model, config.vocab_size, bias=False)
    return model


def load(folder):
    """Loads a saved model entirely in float64, including its tables. Returns the model and the dtype of its saved
    weights."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    stored = kind(config).from_pretrained(folder, dtype="auto", local_files_only=True)
    weights = stored.state_dict()
    with Float64():
        model = make(config, attn_implementation="eager", dtype=torch.float64).eval()
        model.config._experts_implementation = "eager"
    model.load_state_dict({n: t.double() for n, t in weights.items()})
    return model, narrowest(weights.values())


def narrowest(tensors):
    """Returns the name of the narrowest dtype that can represent every number."""
    def holds(name):
        return all(torch.equal(t.to(getattr(torch, name)).double(), t.double()) for t in tensors)
    return next(name for name in ("bfloat16", "float16", "float32", "float64") if holds(name))


def logits(model, tokens, **encoder):
    """`encoder` contains the encoder's inputs in an encoder-decoder model; the decoder reads the tokens."""
    name = "decoder_input_ids" if encoder else "input_ids"
    with Float64(), torch.no_grad():
        if "bert" not in model.config.model_type:
            return model(**{name: tokens}, **encoder, use_cache=False).logits
        if "MultipleChoice" in type(model).__name__:  # each row of tokens is a choice
            return model(input_ids=tokens[None]).logits[0][:, None]
        found = model(input_ids=tokens)
        return found.logits if hasattr(found, "logits") else found.prediction_logits


def versions():
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__,
            "transformers": transformers.__version__, "safetensors": safetensors.__version__}
