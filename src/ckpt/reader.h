/* The definition of an open checkpoint, for code that reads its tensors. */
#pragma once

#include "base/file.h"
#include "ckpt/ckpt.h"

struct Ckpt {
    char *dir, *folder;
    int64_t iteration; /* the requested iteration */
    Comm *comm;
    Manifest manifest;
    FileMap *maps;      /* [num_files]; a file is mapped when it is first read */
    const char *remedy; /* set by ckpt_set_remedy, or NULL */
};

/* Checks the tensor's hash. Call ckpt_tensor_bytes only after this check has succeeded. */
Err open_check(const Ckpt *, const CkptTensor *);
const unsigned char *ckpt_tensor_bytes(const Ckpt *, const CkptTensor *);
/* Collective: returns one rank's error on all ranks, with advice about which checkpoint to load instead. */
Err ckpt_agree(const Ckpt *, Err);
