/* What agents are told of a training graph is what grad said of it; what names something else is refused. */
#include "common/train_info.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/graph_fixture.h"

struct told {
    struct graph *forward, *g;
    struct grad_info info;
    struct wire_training w;
    struct wire_param params[4];
    int64_t uses[4][4];
    struct wire_state states[2];
};

/* One weight that is used twice, behind it a batch normalisation with running statistics. */
static void make(struct told *t)
{
    struct grad_options o;
    struct yk_diag why = {""};
    *t = (struct told){.forward = fx_open()};
    struct graph *g = t->forward;
    graph_sym(g, "N");
    int32_t x = fx_input(g, "x", DT_F32, (const int64_t[]){-1, 4}, 2),
            w = fx_weight(g, "w", (const int64_t[]){4, 4}, 2);
    int32_t y = fx_node(g, "MatMul", "y", IDS(fx_node(g, "MatMul", "h", IDS(x, w)), w)), of[5] = {y};
    static const char *const names[] = {"scale", "bias", "mean", "var"};
    for (int k = 0; k < 4; k++)
        of[1 + k] = fx_weight(g, names[k], (const int64_t[]){4}, 1);
    fx_output(g, fx_node(g, "BatchNormalization", "z", of, 5));
    grad_options_init(&o);
    o.loss = GRAD_MSE;
    if (grad_build(g, &o, &t->g, &t->info, &why))
        fail_msg("%s", why.text);
    const struct grad_info *i = &t->info;
    t->w = (struct wire_training){.params = {t->params, (size_t)i->n_params},
        .states = {t->states, (size_t)i->n_states},
        .stay = t->g->n_outputs - i->model_output - i->n_model_outputs,
        .loss = i->loss_output,
        .scores = i->logits_output,
        .outputs = i->model_output,
        .n_outputs = i->n_model_outputs,
        .first_backward = i->first_backward,
        .target = i->target_input,
        .divisor = i->divisor_input};
    assert_in_range(i->n_params, 3, 4);
    assert_int_equal(i->n_states, 2);
    for (int32_t p = 0; p < i->n_params; p++) {
        assert_in_range(i->params[p].n_uses, 1, 4);
        for (int32_t u = 0; u < i->params[p].n_uses; u++)
            t->uses[p][u] = i->params[p].uses[u];
        t->params[p] =
            (struct wire_param){.value = i->params[p].value, .uses = {t->uses[p], (size_t)i->params[p].n_uses}};
    }
    for (int32_t s = 0; s < 2; s++)
        t->states[s] = (struct wire_state){.value = i->states[s].value, .output = i->states[s].output};
}

static void end(struct told *t)
{
    graph_close(t->g);
    graph_close(t->forward);
}

static void is_what_grad_said(void **state)
{
    (void)state;
    struct told t;
    struct grad_info got;
    struct yk_diag why = {""};
    make(&t);
    const struct grad_info *want = &t.info;
    if (train_info_read(&t.w, t.g, &got, &why))
        fail_msg("%s", why.text);
    assert_int_equal(t.g->n_staying, t.w.stay);
    assert_true(t.w.stay > 0);
    assert_int_equal(got.n_params, want->n_params);
    for (int32_t p = 0; p < got.n_params; p++) {
        assert_int_equal(got.params[p].value, want->params[p].value);
        assert_string_equal(got.params[p].name, want->params[p].name);
        assert_true(got.params[p].trainable);
        assert_int_equal(got.params[p].n_uses, want->params[p].n_uses);
        for (int32_t u = 0; u < got.params[p].n_uses; u++)
            assert_int_equal(got.params[p].uses[u], want->params[p].uses[u]);
    }
    assert_int_equal(got.n_states, want->n_states);
    for (int32_t s = 0; s < got.n_states; s++) {
        assert_int_equal(got.states[s].value, want->states[s].value);
        assert_int_equal(got.states[s].output, want->states[s].output);
    }
    const int32_t pairs[][2] = {{got.target_input, want->target_input}, {got.divisor_input, want->divisor_input},
        {got.loss_output, want->loss_output}, {got.model_output, want->model_output},
        {got.logits_output, want->logits_output}, {got.n_model_outputs, want->n_model_outputs},
        {got.first_backward, want->first_backward}};
    for (size_t k = 0; k < YK_COUNT(pairs); k++)
        assert_int_equal(pairs[k][0], pairs[k][1]);
    end(&t);
}

static void crooked_ones_are_refused(void **state)
{
    (void)state;
    struct told t;
    make(&t);
    const int64_t leave = t.g->n_outputs - t.w.stay, huge = INT64_MAX;
    const struct {
        int64_t *at, value;
    } cases[] = {{&t.w.loss, -1}, {&t.w.loss, leave}, {&t.w.loss, huge}, {&t.w.scores, -1}, {&t.w.scores, leave},
        {&t.w.outputs, -1}, {&t.w.outputs, leave + 1}, {&t.w.outputs, huge}, {&t.w.n_outputs, -1},
        {&t.w.n_outputs, leave + 1}, {&t.w.n_outputs, huge}, {&t.w.stay, -1}, {&t.w.stay, t.g->n_outputs + 1},
        {&t.w.stay, t.g->n_outputs}, {&t.w.stay, INT64_MIN}, {&t.w.target, t.g->n_inputs}, {&t.w.target, -1},
        {&t.w.divisor, t.g->n_inputs}, {&t.w.divisor, huge}, {&t.w.first_backward, t.g->n_nodes + 1},
        {&t.w.first_backward, -1}, {&t.params[0].value, -1}, {&t.params[0].value, t.g->n_values},
        {&t.params[1].value, t.g->inputs[0]}, {&t.uses[0][0], -1}, {&t.uses[1][0], t.g->n_outputs},
        {&t.uses[0][0], (int64_t)1 << 32}, {&t.states[1].value, t.g->outputs[0]}, {&t.states[0].value, huge},
        {&t.states[0].output, t.g->n_outputs}, {&t.states[1].output, -1}};
    for (size_t k = 0; k < YK_COUNT(cases); k++) {
        struct grad_info got = {.n_params = 77};
        struct yk_diag why = {""};
        int64_t was = *cases[k].at;
        *cases[k].at = cases[k].value;
        yk_err err = train_info_read(&t.w, t.g, &got, &why);
        if (err != YK_INVAL || !why.text[0] || got.n_params != 77)
            fail_msg("case %zu: %s '%s'", k, yk_err_name(err), why.text);
        *cases[k].at = was;
    }
    for (int many = 0; many < 2; many++) {
        struct grad_info got;
        size_t was = t.params[0].uses.n;
        t.params[0].uses.n = many ? (size_t)t.g->n_outputs + 1 : 0;
        assert_int_equal(train_info_read(&t.w, t.g, &got, NULL), YK_INVAL);
        t.params[0].uses.n = was;
    }
    end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_what_grad_said),
        cmocka_unit_test(crooked_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
