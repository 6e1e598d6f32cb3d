/* Finds the command, reads its flags, runs it. */
#include "scheduler/cli/cli.h"

#include "scheduler/cli/flags.h"
#include "scheduler/cli/networks.h"
#include "scheduler/cli/rest.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY(text, kind, otherwise, help, field, choices, value)                             \
    {                                                                                       \
        text, kind, otherwise, 0, 0, help, offsetof(struct cli_opts, field), choices, value \
    }
#define NUMBER(text, otherwise, lo, hi, help, field, value)                                    \
    {                                                                                          \
        text, CONF_I64, otherwise, lo, hi, help, offsetof(struct cli_opts, field), NULL, value \
    }
#define MANY INT64_C(1000000000)

#define KEY_NAME KEY("name", CONF_STR, NULL, "Name of the model (default: the file's name).", name, NULL, "S")
#define KEY_OBJECTIVE                                                               \
    KEY("objective", CONF_ENUM, "auto",                                             \
        "What the plan is best at; auto: latency for infer, throughput for batch. " \
        "cloud-cost: least compute on class cloud within --deadline-ms.",           \
        objective, "auto|latency|throughput|cloud-cost", NULL)
#define KEY_BATCH(other) NUMBER("batch", other, 1, MANY, "Samples of one step.", batch, "N")
#define KEY_MICROBATCH \
    KEY("microbatch", CONF_STR, "auto", "Samples that travel together, or auto.", microbatch_text, NULL, "auto|N")
#define KEY_SOURCE \
    KEY("source", CONF_STR, NULL, "Agent that holds the data (default: the planner picks one).", source, NULL, "AGENT")
#define KEY_DEADLINE                                                                                                \
    NUMBER("deadline-ms", NULL, 0, MANY, "Time the whole job has, from its submission to its last result; 0: any.", \
        deadline_ms, "T")
#define KEY_CODEC \
    KEY("codec", CONF_STR, NULL, "Codecs the plan may use on links besides fp32: fp16, int8.", codec, NULL, "LIST")
#define KEY_PIN \
    KEY("pin", CONF_STR, NULL, "Stages that stay on the source: first,last (training: first).", pin, NULL, "LIST")
#define KEY_PLAN                                                                                                       \
    KEY("plan", CONF_STR, NULL, "Run exactly this plan (what `yoke plan --json` printed, edited or not).", plan, NULL, \
        "FILE.json")
#define KEY_OUTPUT KEY("output", CONF_STR, NULL, "Where the output goes, a .npy file.", output, NULL, "y.npy")
#define KEY_INPUTS                                                                                             \
    KEY("input", CONF_STRS, NULL,                                                                              \
        "An input: .npy, .jpg, .png or a folder of images; with its name if there are several.", inputs, NULL, \
        "[NAME=]PATH")
#define KEY_OUTPUTS                                                                                          \
    KEY("output", CONF_STRS, NULL, "Where an output goes: a .npy file, or a folder for all.", outputs, NULL, \
        "[NAME=]y.npy|FOLDER/")
#define KEY_SIZE                                                                                                  \
    KEY("size", CONF_STRS, NULL, "The size of a named dimension of the model other than the batch.", sizes, NULL, \
        "NAME=N")
#define KEY_DATA                                                                                                 \
    KEY("data", CONF_STR, NULL, "A folder or file here, or a name under a data root of the source.", data, NULL, \
        "PATH|NAME")
#define KEY_SPLIT \
    KEY("split", CONF_STR, "t10k", "Which part of a data set that has parts.", split, NULL, "train|t10k|test|val")
#define KEY_MEAN KEY("mean", CONF_STR, NULL, "Subtracted from the pixels, per channel.", mean, NULL, "A,B,C")
#define KEY_STD KEY("std", CONF_STR, NULL, "Divides the pixels, per channel.", std, NULL, "A,B,C")
#define KEYS_IMAGE                                                                                                   \
    KEY("preset", CONF_STR, NULL, "Images: usual preprocessing (resize 256, crop 224, mean and std).", preset, NULL, \
        "imagenet"),                                                                                                 \
        KEY("preprocess", CONF_STR, NULL, "Images: preprocessing from a file, or none for not the model's own.",     \
            preprocess, NULL, "F.json"),                                                                             \
        KEY("resize", CONF_STR, NULL, "Images: length of the shorter side, or height x width.", resize, NULL,        \
            "N|HxW"),                                                                                                \
        KEY("crop", CONF_STR, NULL, "Images: the middle of them.", crop, NULL, "N|HxW"),                             \
        KEY("interpolation", CONF_STR, NULL, "Images: bilinear (default), bicubic or nearest.", interpolation, NULL, \
            "KIND")
#define KEY_LABELS                                                                                                  \
    KEY("labels", CONF_STR, NULL, "Names of the classes, a line each, for the five best that are shown of images.", \
        labels, NULL, "FILE")
#define KEY_SEED NUMBER("seed", "0", 0, INT64_MAX, "What random numbers follow from.", seed, "S")
#define KEY_TUNE                                                                                                     \
    KEY("tune", CONF_BOOL, NULL, "Choose forms by measuring them here; remembered in the user's cache.", tune, NULL, \
        NULL)
#define KEY_TIMELINE KEY("timeline", CONF_STR, NULL, "Draw when what ran, as SVG.", timeline, NULL, "OUT.svg")
#define KEY_THREADS NUMBER("threads", NULL, 0, 1024, "Compute threads; 0: all cores.", threads, "N")
#define KEY_BACKEND                                                                                                    \
    KEY("backend", CONF_STR, "auto", "auto, or a list: ref, simd, blas, or the path of a shared object (with a '/').", \
        backend, NULL, "LIST"),                                                                                        \
        NUMBER("backend-timeout-ms", "10000", 1, 3600000,                                                              \
            "A shared object that takes longer for a call is quarantined.", backend_timeout_ms, "N"),                  \
        NUMBER("backend-check-every", "256", -1, MANY,                                                                 \
            "One run in so many of a shared object is repeated with ref; -1: never.", backend_check_every, "N")

#define KEYS_TRAIN                                                                                    \
    TRAIN_FLAGS_KEYS, KEY_BATCH("64"), KEY_MICROBATCH,                                                \
        KEY("output", CONF_STR, NULL, "Where the trained model goes.", output, NULL, "trained.onnx"), \
        KEY("plot", CONF_STR, NULL, "The loss curve as a picture.", plot, NULL, "loss.svg")

static const struct conf_key keys_rest[] = {
    KEY("rest", CONF_STR, "http://127.0.0.1:7711", "Where yoked answers.", rest, NULL, "URL"),
    KEY("json", CONF_BOOL, NULL, "Print JSON for programs.", json, NULL, NULL),
};
static const struct conf_key keys_model_add[] = {KEY_NAME, KEYS_IMAGE, KEY_MEAN, KEY_STD};
static const struct conf_key keys_model_new[] = {NUMBER("classes", "10", 1, 1000000, "Outputs.", classes, "N"),
    KEY("input", CONF_STR, NULL, "Channels, height and width of a picture.", input_size, NULL, "CxHxW"), KEY_SEED};
static const struct conf_key keys_job[] = {
    KEY("watch", CONF_BOOL, NULL, "Follow the job until it ends.", watch, NULL, NULL), KEY_TIMELINE,
    NUMBER("step", "-1", -1, MANY, "Which measured step of a training to draw, from 1; -1: the newest.", step, "N")};
static const struct conf_key keys_plan[] = {
    KEY("job", CONF_ENUM, "batch", "Kind of job.", job, "infer|batch|train", NULL), KEY_OBJECTIVE, KEY_BATCH("1"),
    KEY_MICROBATCH, KEY_SOURCE, KEY_DEADLINE, KEY_CODEC, KEY_PIN, KEY_PLAN, KEY_SIZE,
    KEY("explain", CONF_BOOL, NULL,
        "Say why this plan: alternatives, what binds it, what another device, link or memory would bring.", explain,
        NULL, NULL),
    KEY("timeline", CONF_STR, NULL, "Draw when what is to run, as SVG.", timeline, NULL, "OUT.svg"), TRAIN_FLAGS_KEYS};
static const struct conf_key keys_infer[] = {KEY_INPUTS, KEY_OUTPUTS, KEY_LABELS, KEYS_IMAGE, KEY_MEAN, KEY_STD,
    KEY_OBJECTIVE, KEY_SOURCE, KEY_DEADLINE, KEY_CODEC, KEY_PIN, KEY_PLAN};
static const struct conf_key keys_batch[] = {KEY_DATA, KEY_SPLIT, KEY_SOURCE, KEY_BATCH("64"), KEY_MICROBATCH,
    KEY_OUTPUT, KEYS_IMAGE, KEY_OBJECTIVE, KEY_DEADLINE, KEY_CODEC, KEY_PIN, KEY_MEAN, KEY_STD, KEY_PLAN, KEY_SIZE};
static const struct conf_key keys_train[] = {KEY_DATA,
    KEY("split", CONF_STR, "train", "Part of the data set.", split, NULL, "S"), KEY_SOURCE, KEYS_TRAIN,
    KEY("val", CONF_STR, NULL,
        "What judges the result: a share of the samples, held out of training, or none (default: the test split).", val,
        NULL, "SHARE|none"),
    KEY("resume", CONF_BOOL, NULL, "Follow the training of this model that is open.", resume, NULL, NULL), KEYS_IMAGE,
    KEY_CODEC, KEY_PIN, KEY_MEAN, KEY_STD, KEY_PLAN, KEY_SIZE};
static const struct conf_key keys_local_infer[] = {KEY_INPUTS, KEY_OUTPUTS, KEY_LABELS, KEYS_IMAGE, KEY_MEAN, KEY_STD,
    KEY_PLAN, KEY_SIZE, KEY_TUNE, KEY_THREADS, KEY_BACKEND};
static const struct conf_key keys_local_batch[] = {KEY_DATA, KEY_SPLIT, KEY_BATCH("64"), KEY_MICROBATCH, KEY_OUTPUT,
    KEYS_IMAGE, KEY_MEAN, KEY_STD, KEY_PLAN, KEY_SIZE, KEY_TUNE, KEY_THREADS, KEY_BACKEND};
static const struct conf_key keys_local_train[] = {
    KEY("data", CONF_STR, NULL, "What is trained with: a folder or file here.", data, NULL, "PATH"),
    KEY("val", CONF_STR, NULL, "What validates: a share of the samples, a set, or none (default: the test split).", val,
        NULL, "SHARE|PATH|none"),
    KEYS_TRAIN,
    NUMBER("accumulate", "1", 1, 1000000, "Batches whose gradients are added up before a step.", accumulate, "K"),
    KEY("checkpoint", CONF_STR, NULL, "Folder in which the training is kept: each epoch, each minute.", checkpoint,
        NULL, "DIR"),
    KEY("resume", CONF_BOOL, NULL, "Go on from the last checkpoint.", resume, NULL, NULL), KEY_PLAN, KEYS_IMAGE,
    KEY_MEAN, KEY_STD, KEY_TUNE, KEY_THREADS, KEY_BACKEND};
static const struct conf_key keys_local_bench[] = {KEY_INPUTS, KEY_BATCH("1"), KEY_SIZE, KEY_PLAN, KEY_TUNE,
    KEY_THREADS, KEY_BACKEND, NUMBER("repeat", "10", 1, 100000, "Timed runs after two warm-ups.", repeat, "N"),
    KEY("ops", CONF_BOOL, NULL, "Time every node too, and kinds of nodes together.", ops, NULL, NULL), KEY_TIMELINE};

static const struct conf_key keys_local_check[] = {KEY_BACKEND, KEY_THREADS,
    KEY("dump", CONF_STR, NULL, "Write our outputs as .pb files, for tests/conformance/check.py.", dump, NULL, "DIR")};
static const struct conf_key keys_local_ops[] = {KEY_BACKEND};

#define NO_KEYS NULL, 0
#define KEYS(table) table, (int)YK_COUNT(table)
static const struct cli_command commands[] = {
    {"agents", "", "The devices of the fleet.", NO_KEYS, 0, 0, cli_agents},
    {"links", "", "What was measured between them.", NO_KEYS, 0, 0, cli_links},
    {"models", "", "The models that yoked holds.", NO_KEYS, 0, 0, cli_models},
    {"jobs", "", "Jobs, newest first.", NO_KEYS, 0, 0, cli_jobs},
    {"model add", "FILE.onnx", "Give yoked a model.", KEYS(keys_model_add), 1, 1, cli_model_add},
    {"model new", "KIND --input=CxHxW out.onnx", "Make an untrained network: " NETWORKS_KINDS ".", KEYS(keys_model_new),
        2, 2, cli_model_new},
    {"model remove", "NAME", "Take a model and its content from yoked.", NO_KEYS, 1, 1, cli_model_remove},
    {"plan", "MODEL", "Where the stages would go, and why.", KEYS(keys_plan), 1, 1, cli_plan},
    {"infer", "MODEL --input=[NAME=]FILE", "Run one sample or batch.", KEYS(keys_infer), 1, 1, cli_infer},
    {"batch", "MODEL --data=PATH|NAME", "Run a whole data set.", KEYS(keys_batch), 1, 1, cli_batch},
    {"train", "MODEL --data=PATH|NAME", "Train a model on the fleet.", KEYS(keys_train), 1, 1, cli_train},
    {"job", "ID", "One job: state, progress, events.", KEYS(keys_job), 1, 1, cli_job},
    {"cancel", "ID", "End a job.", NO_KEYS, 1, 1, cli_cancel},
    {"output get", "ID FILE [NAME]",
        "What a job gave, the output NAME or the first, into a file: .npy, or the trained model.", NO_KEYS, 2, 3,
        cli_output_get},
    {"output remove", "ID", "Take the output of a job that has ended from yoked.", NO_KEYS, 1, 1, cli_output_remove},
    {"local infer", "FILE.onnx --input=[NAME=]FILE", "Run one sample or batch on this machine, without a scheduler.",
        KEYS(keys_local_infer), 1, 1, cli_local_infer},
    {"local batch", "FILE.onnx --data=PATH", "Run a data set on this machine.", KEYS(keys_local_batch), 1, 1,
        cli_local_batch},
    {"local train", "FILE.onnx --data=PATH", "Train a model on this machine.", KEYS(keys_local_train), 1, 1,
        cli_local_train},
    {"local bench", "FILE.onnx", "Time a model on this machine.", KEYS(keys_local_bench), 1, 1, cli_local_bench},
    {"local check", "DIR", "Run ONNX backend test data and judge the outputs.", KEYS(keys_local_check), 1, 1,
        cli_local_check},
    {"local ops", "", "The ops there are, and which backends run them.", KEYS(keys_local_ops), 0, 0, cli_local_ops},
};

static const struct conf_table base = {"yoke", NULL, KEYS(keys_rest), NULL};

static void print_help(FILE *f)
{
    fprintf(f, "usage: yoke [--rest=URL] [--json] COMMAND ...\n\n");
    for (size_t i = 0; i < YK_COUNT(commands); i++) {
        char line[80];
        snprintf(line, sizeof line, "%s%s%s", commands[i].words, commands[i].usage[0] ? " " : "", commands[i].usage);
        fprintf(f, "  yoke %-42s %s\n", line, commands[i].help);
    }
    fprintf(f, "\n`yoke COMMAND --help` lists a command's flags. The scheduler is --rest, else $YOKE_REST, else "
               "http://127.0.0.1:7711.\nExit codes: 0 done, 1 the work failed, 2 wrong usage.\n");
}

/* The command whose words are the first positional arguments; they are moved to the front of argv and *n_words set. */
static const struct cli_command *find_command(int argc, char **argv, int *word_at, int *n_words)
{
    const char *first = conf_command(&base, argc, argv);
    if (!first)
        return NULL;
    int at = 1;
    while (at < argc && argv[at] != first)
        at++;
    for (size_t i = 0; i < YK_COUNT(commands); i++) {
        const char *space = strchr(commands[i].words, ' ');
        size_t len = space ? (size_t)(space - commands[i].words) : strlen(commands[i].words);
        if (strlen(first) != len || strncmp(first, commands[i].words, len) != 0)
            continue;
        if (space && (at + 1 >= argc || strcmp(argv[at + 1], space + 1) != 0))
            continue;
        *word_at = at;
        *n_words = space ? 2 : 1;
        return &commands[i];
    }
    return NULL;
}

/* `yoke help`, `yoke local --help`, `yoke model`: the commands of a group, or all. */
static int help_for(const char *word, bool asked)
{
    bool any = false;
    size_t n = strlen(word);
    if (strcmp(word, "help") == 0) {
        print_help(stdout);
        return CLI_DONE;
    }
    for (size_t i = 0; i < YK_COUNT(commands); i++)
        if (strncmp(commands[i].words, word, n) == 0 && commands[i].words[n] == ' ') {
            if (!any)
                fprintf(asked ? stdout : stderr, "usage: yoke %s COMMAND ...\n\n", word);
            any = true;
            fprintf(asked ? stdout : stderr, "  yoke %s %s\n      %s\n", commands[i].words, commands[i].usage,
                commands[i].help);
        }
    if (!any)
        fprintf(stderr, "yoke: unknown command '%s'; `yoke --help` lists them\n", word);
    return any && asked ? CLI_DONE : CLI_USAGE;
}

int main(int argc, char **argv)
{
    int word_at = 0, n_words = 0;
    const struct cli_command *command = find_command(argc, argv, &word_at, &n_words);
    struct yk_diag why = {0};
    struct cli c = {.tty = isatty(STDERR_FILENO)};
    if (!command) {
        const char *word = conf_command(&base, argc, argv);
        struct conf_table table = {"yoke", NULL, base.keys, base.n_keys, NULL};
        if (word) {
            bool asked = false;
            for (int i = 1; i < argc; i++)
                asked = asked || strcmp(argv[i], "--help") == 0;
            return help_for(word, asked);
        }
        if (conf_parse(&table, argc, argv, &c.o, &c.args, &why)) {
            fprintf(stderr, "yoke: %s\n", why.text);
            return CLI_USAGE;
        }
        bool help = c.args.help, version = c.args.version, config = c.args.print_config;
        conf_fini(&table, &c.o, &c.args);
        if (version)
            printf("yoke %s\n", YOKE_VERSION);
        else if (config)
            conf_print(&base, stdout);
        else
            print_help(help ? stdout : stderr);
        return help || version || config ? CLI_DONE : CLI_USAGE;
    }

    /* Take the command's words out, so that what remains is flags and arguments. */
    for (int i = word_at; i + n_words < argc; i++)
        argv[i] = argv[i + n_words];
    argc -= n_words;
    char *usage = yk_xasprintf("usage: yoke %s %s [flags]\n%s\n", command->words, command->usage, command->help);
    struct conf_table table = {"yoke", usage, command->keys, command->n_keys, &base};
    int code = CLI_USAGE;
    if (conf_parse(&table, argc, argv, &c.o, &c.args, &why)) {
        fprintf(stderr, "yoke: %s (`yoke %s --help` lists its flags)\n", why.text, command->words);
        free(usage);
        return code;
    }
    if (c.args.help) {
        conf_help(&table, stdout);
        code = CLI_DONE;
    } else if (c.args.version) {
        printf("yoke %s\n", YOKE_VERSION);
        code = CLI_DONE;
    } else if (c.args.print_config) {
        conf_print(&table, stdout);
        code = CLI_DONE;
    } else if (c.args.n < command->min_args || c.args.n > command->max_args) {
        fprintf(stderr, "yoke: usage: yoke %s %s [flags]\n", command->words, command->usage);
    } else if (flags_check(&c, command, &why)) {
        fprintf(stderr, "yoke: %s\n", why.text);
    } else {
        code = command->run(&c);
    }
    cli_rest_close(c.rest);
    conf_fini(&table, &c.o, &c.args);
    free(usage);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "yoke: cannot write to standard output\n");
        return code ? code : CLI_FAILED;
    }
    return code;
}
