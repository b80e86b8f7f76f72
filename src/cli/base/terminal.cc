// SPDX-License-Identifier: Apache-2.0
#include "cli/base/terminal.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>

namespace vrun::cli {
namespace {

// Read by signal handlers; written only while no raw terminal is published.
termios modes_to_restore;
std::atomic<int> terminal_to_restore{-1};

void RestoreAndDie(int signal_number) {
  int fd = terminal_to_restore.exchange(-1);
  if (fd >= 0) ::tcsetattr(fd, TCSANOW, &modes_to_restore);
  // SA_RESETHAND has restored the default action. The signal is blocked until we return, and then ends the process.
  ::raise(signal_number);
}

// Like ssh: every byte passes in both directions.
termios Raw(termios modes) {
  modes.c_iflag |= IGNPAR;
  modes.c_iflag &= ~static_cast<tcflag_t>(ISTRIP | INLCR | IGNCR | ICRNL | IXON | IXANY | IXOFF | IUCLC);
  modes.c_lflag &= ~static_cast<tcflag_t>(ISIG | ICANON | ECHO | ECHOE | ECHOK | ECHONL | IEXTEN);
  modes.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  modes.c_cc[VMIN] = 1;
  modes.c_cc[VTIME] = 0;
  return modes;
}

// Does not drain first: output that nobody reads must not delay the restore.
bool SetModes(int fd, const termios& modes) {
  int rc;
  do {
    rc = ::tcsetattr(fd, TCSANOW, &modes);
  } while (rc != 0 && errno == EINTR);
  return rc == 0;
}

}  // namespace

bool InBackground(int fd) {
  pid_t foreground = ::tcgetpgrp(fd);
  // ENOTTY: not our controlling terminal, so job control does not apply.
  return foreground >= 0 && foreground != ::getpgrp();
}

v1::TerminalSize CurrentTerminalSize() {
  v1::TerminalSize out;
  out.set_rows(24);
  out.set_columns(80);
  for (int fd : {0, 1, 2}) {
    winsize size;
    if (::ioctl(fd, TIOCGWINSZ, &size) != 0) continue;
    if (size.ws_row > 0) out.set_rows(size.ws_row);
    if (size.ws_col > 0) out.set_columns(size.ws_col);
    out.set_x_pixels(size.ws_xpixel);
    out.set_y_pixels(size.ws_ypixel);
    break;
  }
  return out;
}

size_t TerminalColumns(int fd) {
  winsize size;
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col < 20 ? 20 : size.ws_col;
}

Status RawTerminal::Enter() {
  if (InBackground(fd_)) return {};
  if (raw_ && !input_left_) return {};
  if (raw_) {
    if (!SetModes(fd_, Raw(before_))) return ErrnoError("terminal");
    input_left_ = false;
    return {};
  }
  if (::tcgetattr(fd_, &before_) != 0) return ErrnoError("terminal");
  modes_to_restore = before_;
  terminal_to_restore = fd_;
  if (!SetModes(fd_, Raw(before_))) {
    terminal_to_restore = -1;
    return ErrnoError("terminal");
  }
  raw_ = true;
  input_left_ = false;
  return {};
}

void RawTerminal::LeaveInput() {
  if (!raw_ || input_left_ || InBackground(fd_)) return;
  termios modes = before_;
  modes.c_oflag = Raw(before_).c_oflag;
  input_left_ = SetModes(fd_, modes);
}

void RawTerminal::Leave() {
  if (!raw_) return;
  raw_ = input_left_ = false;
  // In the background this would stop us with SIGTTOU, and even with SIGTTOU blocked the shell's modes must not be
  // changed.
  if (terminal_to_restore.exchange(-1) >= 0 && !InBackground(fd_)) SetModes(fd_, before_);
}

void RawTerminal::Resume() {
  if (!raw_ || input_left_) return;
  termios now;
  termios ours = Raw(before_);
  // Modes are unchanged: a SIGCONT without a stop. Saving these modes for the restore would lose the real ones.
  bool same = ::tcgetattr(fd_, &now) == 0 && now.c_iflag == ours.c_iflag && now.c_oflag == ours.c_oflag &&
              now.c_lflag == ours.c_lflag;
  if (same) return;
  raw_ = false;
  terminal_to_restore = -1;
  (void)Enter();
}

void StopAsByKey() {
  struct sigaction ours, standard{};
  if (::sigaction(SIGTSTP, nullptr, &ours) != 0 || ours.sa_handler == SIG_IGN) return;
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGTSTP, &standard, nullptr);
  sigset_t stop, before;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  // Our parent waits for the whole group: a script that runs us must stop too.
  ::kill(0, SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, &before);  // the process stops here
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::sigaction(SIGTSTP, &ours, nullptr);
}

void RestoreTerminalOnFatalSignals(const sigset_t& handled) {
  for (int s = 1; s < SIGRTMAX; ++s) {
    switch (s) {
      case SIGKILL:
      case SIGSTOP:
      case SIGPIPE:
      case SIGCHLD:
      case SIGURG:
      case SIGWINCH:
      case SIGCONT:
      case SIGTSTP:
      case SIGTTIN:
      case SIGTTOU: continue;
      default: break;
    }
    if (::sigismember(&handled, s) == 1) continue;
    struct sigaction old, action{};
    if (::sigaction(s, nullptr, &old) != 0 || old.sa_handler == SIG_IGN) continue;
    // Keeps a sanitizer's handler.
    if (old.sa_handler != SIG_DFL) continue;
    action.sa_handler = RestoreAndDie;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    ::sigaction(s, &action, nullptr);
  }
}

}  // namespace vrun::cli
