#include "nn/branch.h"

#define BRANCH(kind, ...) extern const BranchOps kind##_branch;
#include "nn/branches.def"
#undef BRANCH

const BranchKind BRANCHES[BRANCH_KINDS] = {
#define BRANCH(kind, letter, scope, norm, dropout) {letter, scope, norm, dropout, &kind##_branch},
#include "nn/branches.def"
#undef BRANCH
};
