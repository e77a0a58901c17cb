/* A pack for a model that none holds: made by the program haotuner, once for all processes, in a folder of the user's cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider.h"

#define MOST_WORDS 16
#define STOPPED 3 /* haotuner's exit code of a pack whose ops were not all measured */

extern char** environ;

/* The folder of packs: the option, else $XDG_CACHE_HOME/haotuner/onnxruntime, else below ~/.cache. 0: there is none. */
static int cache_folder(const provider_options* options, char out[OPTION_SIZE]) {
  const char *chosen = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
  int used = -1;
  if (options->cache[0] != 0) used = snprintf(out, OPTION_SIZE, "%s", options->cache);
  else if (chosen != NULL && chosen[0] == '/') used = snprintf(out, OPTION_SIZE, "%s/haotuner/onnxruntime", chosen);
  else if (home != NULL && home[0] == '/') used = snprintf(out, OPTION_SIZE, "%s/.cache/haotuner/onnxruntime", home);
  return used > 0 && used < OPTION_SIZE;
}

static int make_folders(char* path) {
  for (char* slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
    if (slash != NULL) *slash = 0;
    int rc = mkdir(path, 0700);
    if (slash != NULL) *slash = '/';
    if (rc != 0 && errno != EEXIST) return 0;
    if (slash == NULL) return 1;
  }
}

/* Whether the pack opens here: it is whole, and of this CPU. */
static int is_served(const char* folder) {
  ht_pack* pack = NULL;
  if (ht_pack_open(folder, 1, &pack, NULL) != HT_OK) return 0;
  ht_pack_close(pack);
  return 1;
}

/* Run a program with its output in a file. Its exit code; -1: it did not start, or was ended by a signal. */
static int run(char* const* words, const char* log) {
  posix_spawn_file_actions_t files;
  pid_t child;
  int state = 0;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  int rc = posix_spawnp(&child, words[0], &files, NULL, words, environ);
  posix_spawn_file_actions_destroy(&files);
  if (rc != 0) return -1;
  while (waitpid(child, &state, 0) < 0)
    if (errno != EINTR) return 0; /* the process reaps its children itself: the pack tells how it went */
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

static int tune(const provider_options* options, const char* model, const char* folder, const char* log) {
  char* words[MOST_WORDS];
  int count = 0;
  words[count++] = (char*)(options->command[0] != 0 ? options->command : "haotuner");
  words[count++] = "tune";
  words[count++] = (char*)model;
  if (options->shapes[0] != 0) words[count++] = "--shapes", words[count++] = (char*)options->shapes;
  if (strcmp(options->tune, "zero") == 0) words[count++] = "--zero-measure";
  else words[count++] = "--budget", words[count++] = (char*)options->tune;
  words[count++] = "--subgraphs";
  words[count++] = "--quiet";
  words[count++] = "--out";
  words[count++] = (char*)folder;
  words[count] = NULL;
  return run(words, log);
}

OrtStatus* provider_tune(const ort_host* host, const provider_options* options, const char* model_path, const char* sha256, char folder[2 * OPTION_SIZE]) {
  char cache[OPTION_SIZE], lock_path[2 * OPTION_SIZE], log[2 * OPTION_SIZE];
  if (model_path == NULL || model_path[0] == 0)
    return provider_refuse(host->api, ORT_INVALID_ARGUMENT, "a pack is made from a model's file, and the model came as bytes; pass a path, or tune before");
  if (!cache_folder(options, cache)) return provider_refuse(host->api, ORT_INVALID_ARGUMENT, "there is no folder for packs that are made; set ep.haotuner.cache");
  if (!make_folders(cache)) return provider_refuse(host->api, ORT_FAIL, "the folder %s cannot be made (%s); set ep.haotuner.cache to another", cache, strerror(errno));
  snprintf(folder, 2 * OPTION_SIZE, "%s/%.64s", cache, sha256);
  snprintf(lock_path, sizeof lock_path, "%s/%.64s.lock", cache, sha256);
  snprintf(log, sizeof log, "%s/%.64s.log", cache, sha256);
  int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) { /* other processes wait here for the one that makes the pack */
    int why = errno;
    if (lock >= 0) close(lock);
    return provider_refuse(host->api, ORT_FAIL, "%s cannot be locked (%s); set ep.haotuner.cache to a folder that can be written", lock_path, strerror(why));
  }
  OrtStatus* status = NULL;
  if (!is_served(folder)) {
    provider_warn(host, "no pack holds %s: one is made in %s (tune=%s)", model_path, folder, options->tune);
    int code = tune(options, model_path, folder, log);
    if ((code != 0 && code != STOPPED) || !is_served(folder))
      status = provider_refuse(host->api, ORT_EP_FAIL, "`%s tune %s` made no pack (exit code %d); its words are in %s. Is haotuner installed with its models group, and does option shapes fit the model?",
                               options->command[0] != 0 ? options->command : "haotuner", model_path, code, log);
  }
  close(lock);
  return status;
}
