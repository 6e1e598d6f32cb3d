/* Networks to start from without another framework: the architectures of torchvision with its names of parameters and
 * the initial values that PyTorch gives (drawn from a generator of ours). resnet-small is a ResNet-14 for small
 * pictures: a stem of 3x3 and two blocks each of 16, 32 and 64 channels. */
#ifndef YK_NETWORKS_H
#define YK_NETWORKS_H

#include "common/graph.h"

struct networks_options {
    int64_t classes;
    int64_t channels, height, width; /* of the input */
    uint64_t seed;
};

#define NETWORKS_KINDS "mlp, cnn, resnet-small, resnet18, resnet34, vit-tiny"

/* Input "x" (N, C, H, W), output "logits" (N, classes); N is the batch. Errors: YK_NOTFOUND for an unknown kind,
 * YK_INVAL for sizes that it does not take, YK_NOMEM.  Owner: graph_close. */
yk_err networks_make(const char *kind, const struct networks_options *o, struct graph **out, struct yk_diag *why);

#endif
