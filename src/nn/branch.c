#include "nn/branch.h"

#define BRANCH(kind, ...) extern const BranchOps kind##_branch;
#include "nn/branches.def"
#undef BRANCH

const BranchKind BRANCHES[BRANCH_KINDS] = {
#define BRANCH(kind, letter, scope, ...) {letter, scope, __VA_ARGS__, &kind##_branch},
#include "nn/branches.def"
#undef BRANCH
};
