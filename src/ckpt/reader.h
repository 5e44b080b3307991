/* An open checkpoint, for those who read its tensors. */
#ifndef ISOTRON_CKPT_READER_H
#define ISOTRON_CKPT_READER_H

#include "base/file.h"
#include "ckpt/ckpt.h"

struct Ckpt {
    char *dir, *folder;
    int64_t iteration; /* that was asked for */
    Comm *comm;
    Manifest manifest;
    FileMap *maps; /* [num_files]; a file is mapped when it is first read */
};

/* Finds that the bytes of the tensor are those that were saved; without, ckpt_tensor_bytes must not be
 * called. */
Err open_check(const Ckpt *, const CkptTensor *);
const unsigned char *ckpt_tensor_bytes(const Ckpt *, const CkptTensor *);
/* The error that all ranks agree on, with what the user can do about a damaged checkpoint. */
Err ckpt_agree(const Ckpt *, Err);

#endif
