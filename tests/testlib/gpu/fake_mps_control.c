// SPDX-License-Identifier: Apache-2.0
// nvidia-cuda-mps-control, as far as decision 32 saw the real one:
//   -f            the daemon, in the foreground: makes control, control_lock and control_privileged in
//                 $CUDA_MPS_PIPE_DIRECTORY, which stay behind when it has ended
//   (no option)   sends the commands of its standard input to the daemon and prints the answers
// Static, because emulated hosts have few libraries. Every command is a line of $CUDA_MPS_LOG_DIRECTORY/control.log.
// $FAKE_MPS_FAIL (or a file "fail" in the pipe directory): the daemon ends at once, with that text.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMostServers = 16 };
static pid_t servers[kMostServers];
static char percentage[32] = "100.0", memory[64] = "0M";

static const char* pipe_directory(void) {
  const char* given = getenv("CUDA_MPS_PIPE_DIRECTORY");
  return given ? given : "/tmp/nvidia-mps";
}

static struct sockaddr_un address(void) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  if (snprintf(a.sun_path, sizeof a.sun_path, "%s/control", pipe_directory()) >= (int)sizeof a.sun_path) exit(3);
  return a;
}

static int ask(const char* command) {
  struct sockaddr_un a = address();
  const int s = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(s, (struct sockaddr*)&a, sizeof a) != 0) {
    fprintf(stderr, "Cannot find MPS control daemon process\n");
    return 1;
  }
  if (write(s, command, strlen(command)) < 0) return 1;
  shutdown(s, SHUT_WR);
  char answer[4096];
  ssize_t n;
  while ((n = read(s, answer, sizeof answer)) > 0) fwrite(answer, 1, (size_t)n, stdout);
  close(s);
  return 0;
}

static void note(const char* command) {
  const char* directory = getenv("CUDA_MPS_LOG_DIRECTORY");
  char path[4096];
  if (directory == NULL) return;
  snprintf(path, sizeof path, "%s/control.log", directory);
  FILE* log = fopen(path, "ae");
  if (log == NULL) return;
  fprintf(log, "%s\n", command);
  fclose(log);
}

static void start_server(void) {
  for (int i = 0; i < kMostServers; ++i) {
    if (servers[i] != 0) continue;
    servers[i] = fork();
    if (servers[i] == 0) {
      close_range(3, ~0u, 0);  // its client would wait for the end of the connection
      prctl(PR_SET_NAME, "mps-server");
      for (;;) pause();
    }
    return;
  }
}

static void answer(char* command, FILE* out) {
  char first[64] = "", second[64] = "";
  unsigned number = 0;
  note(command);
  if (strncmp(command, "quit", 4) == 0) {
    for (int i = 0; i < kMostServers; ++i) {
      if (servers[i] != 0) kill(servers[i], SIGKILL);
    }
    fclose(out);
    exit(0);
  }
  if (strncmp(command, "start_server", 12) == 0) return start_server();
  if (strcmp(command, "get_server_list") == 0) {
    for (int i = 0; i < kMostServers; ++i) {
      if (servers[i] != 0) fprintf(out, "%d\n", servers[i]);
    }
    return;
  }
  if (sscanf(command, "set_default_active_thread_percentage %31s", percentage) == 1 ||
      strcmp(command, "get_default_active_thread_percentage") == 0) {
    fprintf(out, "%.1f\n", atof(percentage));
    return;
  }
  if (sscanf(command, "set_default_device_pinned_mem_limit %u %63s", &number, memory) == 2) return;
  if (strncmp(command, "get_default_device_pinned_mem_limit", 35) == 0) {
    fprintf(out, "%s\n", memory);
    return;
  }
  if (sscanf(command, "set_active_thread_percentage %u %63s", &number, first) == 2 ||
      sscanf(command, "set_device_pinned_mem_limit %u %63s %63s", &number, first, second) == 3) {
    for (int i = 0; i < kMostServers; ++i) {
      if (servers[i] == (pid_t)number) return;
    }
    fprintf(out, "Server %u not found\n", number);
    return;
  }
  fprintf(out, "Unknown command: %s\n", command);
}

static int serve(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/fail", pipe_directory());
  if (getenv("FAKE_MPS_FAIL") != NULL || access(path, F_OK) == 0) {
    fprintf(stderr, "An instance of this daemon is already running\n");
    return 1;
  }
  const char* names[] = {"control_lock", "control_privileged"};
  for (int i = 0; i < 2; ++i) {
    snprintf(path, sizeof path, "%s/%s", pipe_directory(), names[i]);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return 1;
    close(fd);
  }
  struct sockaddr_un a = address();
  unlink(a.sun_path);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, (struct sockaddr*)&a, sizeof a) != 0 || listen(listener, 16) != 0) return 1;
  chmod(a.sun_path, 0666);
  for (;;) {
    const int s = accept(listener, NULL, NULL);
    if (s < 0) continue;
    FILE *in = fdopen(s, "r"), *out = fdopen(dup(s), "w");
    char line[512];
    while (fgets(line, sizeof line, in) != NULL) {
      line[strcspn(line, "\n")] = 0;
      if (line[0] != 0) answer(line, out);
    }
    fclose(out);
    fclose(in);
    for (int i = 0; i < kMostServers; ++i) {
      if (servers[i] != 0 && waitpid(servers[i], NULL, WNOHANG) == servers[i]) servers[i] = 0;
    }
  }
}

int main(int argc, char** argv) {
  if (argc > 1 && (strcmp(argv[1], "-f") == 0)) return serve();
  char line[512];
  int status = 0;
  while (fgets(line, sizeof line, stdin) != NULL) status |= ask(line);
  return status;
}
