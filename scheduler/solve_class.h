/* Agents that can change places, as one: how a fleet of thousands becomes one of a few. */
#ifndef YK_SOLVE_CLASS_H
#define YK_SOLVE_CLASS_H

#include "scheduler/view.h"

#define SOLVE_CLASSES 23

struct solve_classes {
    int32_t n;
    int32_t *of; /* by agent; -1: not usable */
    int32_t first[SOLVE_CLASSES + 1], count[SOLVE_CLASSES + 1];
    bool uniform;     /* all links of a pair of classes are alike; else those of the view are the best of each pair */
    struct view view; /* an agent for each class, its first; links between classes, and of a class to itself */
    struct view_agent agents[SOLVE_CLASSES + 1];
    struct view_link links[(SOLVE_CLASSES + 2) * (SOLVE_CLASSES + 2)];
};

/* alone (an agent, -1: none) is a class of its own; of memory as much as enough_bytes counts. False: there are more
 * classes than SOLVE_CLASSES. End with solve_classes_close; it borrows v. */
bool solve_classes_find(const struct view *v, int32_t alone, int64_t enough_bytes, struct solve_classes **out);
void solve_classes_close(struct solve_classes *c);

#endif
