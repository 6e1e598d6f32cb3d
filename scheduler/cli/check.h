/* ONNX backend test data against this machine's backends: folders `test_X` with model.onnx and data sets
 * test_data_set_K of input_I.pb and output_I.pb. A test passes when every data set gives outputs of exactly the
 * expected dtype and shape, floats within atol 1e-7 + rtol 1e-3, all else equal. What cannot be judged is skipped, with
 * a reason. */
#ifndef YK_CLI_CHECK_H
#define YK_CLI_CHECK_H

#include "kernels/exec.h"

enum check_verdict { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED };
extern const char *const check_verdicts[]; /* "passed", "failed", "skipped" */

struct check {
    struct backends *backends; /* borrowed */
    bool passes;               /* run the passes of inference, as every other command does */
    bool known;                /* small integer inputs are known before the run, so that shapes are planned with them */
    const char *dump;          /* a folder: our outputs go to DUMP/test_X/test_data_set_K/output_I.pb; or NULL */
    /* Called once for each test, in the order of names; reason is "" for a pass. */
    void (*on)(void *arg, const char *test, enum check_verdict verdict, const char *reason);
    void *arg;
    int count[3]; /* by verdict; filled */
};

/* dir: a folder of tests, or one test. Errors: YK_NOTFOUND (no tests in it), YK_IO; not those of a test, which are its
 * verdict, but for a dump that cannot be written. */
yk_err check_folder(struct check *c, const char *dir, struct yk_diag *why);

#endif
