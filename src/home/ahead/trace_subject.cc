// SPDX-License-Identifier: Apache-2.0
// Finds what a command line runs: skips commands that only run another (env, nice), launchers (torchrun, uv run), and
// options of interpreters. A wrong guess only makes runs of different scripts share a trace, or leaves one untraced.
#include <algorithm>
#include <array>
#include <climits>

#include "base/hash/digest.h"
#include "home/ahead/trace.h"
#include "proto/common.pb.h"
#include "telemetry/trace_context.h"

namespace vrun::home {
namespace {

// Variables that decide where programs, libraries and modules are found.
constexpr std::array<std::string_view, 12> kSearchPaths = {
    "PATH",         "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
    "CONDA_PREFIX", "PERL5LIB",        "RUBYLIB",    "NODE_PATH",  "R_LIBS",     "JULIA_PROJECT"};

// Options are letters (several may be in one word) and words, separated by spaces.
struct Interpreter {
  std::string_view name;      // a version may follow the name
  std::string_view values;    // options with a value: the rest of the word or the next word
  std::string_view texts;     // options whose value is the program itself
  std::string_view text;      // options after which a text is run instead of a file
  std::string_view attached;  // options whose value is the rest of the word, even if empty
  std::string_view words;     // options with a value
};
constexpr Interpreter kInterpreters[] = {
    {"python", "XW", "cm", "", "", "--check-hash-based-pycs"},
    {"pypy", "XW", "cm", "", "", "--jit"},
    {"bash", "oO", "", "c", "", "--rcfile --init-file"},
    {"sh", "o", "", "c", "", ""},
    {"dash", "o", "", "c", "", ""},
    {"zsh", "o", "", "c", "", ""},
    {"ksh", "o", "", "c", "", ""},
    {"perl", "I", "eE", "", "MmFiCxDdV", ""},
    {"ruby", "rIEC", "e", "", "WKiFTx", "--encoding --external-encoding --internal-encoding"},
    {"node", "rC", "e", "", "", "--require --import --loader --experimental-loader --conditions --env-file --title"},
    {"Rscript", "", "e", "", "", ""},
    {"julia", "LJtpCH", "eEm", "", "Og", "--threads --sysimage --load --procs --machine-file --home --cpu-target"},
    {"lua", "l", "e", "", "", ""},
    {"php", "dcztS", "rf", "", "", ""},
};

enum class Runs {
  kItself,  // its command is traced as if run directly
  kOther,   // its command finds its libraries elsewhere, or is started many times
  kScript,  // a Python script
};
struct Carrier {
  std::string_view name;     // with the subcommand
  std::string_view options;  // options with a value; -x=2: with two
  Runs runs = Runs::kItself;
  int operands = 0;  // operands before its command
};
constexpr std::string_view kConda = "-n --name -p --prefix --cwd";
constexpr std::string_view kMpi =
    "-np -n -c -N -H -host --host -hosts -hostfile --hostfile -machinefile --machinefile -f -ppn -x -wdir --wdir -path "
    "--path --map-by -map-by --bind-to -bind-to --rank-by -rank-by --mca=2 -mca=2 -genv=2 -env=2 --output-filename";
constexpr std::string_view kTorchrun =
    "--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts --monitor-interval "
    "--start-method --role --log-dir -r --redirects -t --tee --local-ranks-filter --node-rank --master-addr "
    "--master-port --local-addr --logs-specs";
constexpr std::string_view kAccelerate =
    "--config-file --num-processes --num-machines --machine-rank --main-process-ip --main-process-port "
    "--mixed-precision --gpu-ids --dynamo-backend --num-cpu-threads-per-process --gradient-accumulation-steps "
    "--deepspeed-config-file --zero-stage --rdzv-backend --same-network";
constexpr Carrier kCarriers[] = {
    {"env", "-u --unset -C --chdir -S --split-string"},
    {"nice", "-n --adjustment"},
    {"nohup", ""},
    {"setsid", ""},
    {"time", "-f --format -o --output"},
    {"timeout", "-k --kill-after -s --signal", Runs::kItself, 1},
    {"stdbuf", "-i --input -o --output -e --error"},
    {"numactl", "-i --interleave -N --cpunodebind -C --physcpubind -m --membind -p --preferred -P --preferred-many"},
    {"ionice", "-c --class -n --classdata"},
    {"chrt", "-T --sched-runtime -P --sched-period -D --sched-deadline", Runs::kItself, 1},
    {"taskset", "", Runs::kItself, 1},
    {"xargs", "-a --arg-file -d --delimiter -E -I -L -n --max-args -P --max-procs -s --max-chars"},
    {"uv run",
     "--with --with-editable --with-requirements --extra --group --only-group --env-file --package -p --python "
     "--project --directory --index --default-index --cache-dir --config-file -f --find-links",
     Runs::kOther},
    {"poetry run", "-C --directory -P --project", Runs::kOther},
    {"pipenv run", "", Runs::kOther},
    {"pixi run", "-e --environment --manifest-path", Runs::kOther},
    {"conda run", kConda, Runs::kOther},
    {"mamba run", kConda, Runs::kOther},
    {"micromamba run", kConda, Runs::kOther},
    {"mpirun", kMpi, Runs::kOther},
    {"mpiexec", kMpi, Runs::kOther},
    {"torchrun", kTorchrun, Runs::kScript},
    {"accelerate launch", kAccelerate, Runs::kScript},
    {"deepspeed",
     "-H --hostfile -i --include -e --exclude --num-nodes --num-gpus --master-addr --master-port --launcher",
     Runs::kScript},
};
// Python modules that do the same.
constexpr Carrier kModules[] = {
    {"torch.distributed.run", kTorchrun, Runs::kScript},
    {"torch.distributed.launch", kTorchrun, Runs::kScript},
    {"accelerate.commands.launch", kAccelerate, Runs::kScript},
};

std::string Absolute(const std::string& path, const std::string& directory) {
  return path.starts_with('/') ? path : directory + "/" + path;
}

std::string_view BaseName(std::string_view program) { return program.substr(program.rfind('/') + 1); }

const Interpreter* InterpreterOf(std::string_view program) {
  const std::string_view name = BaseName(program);
  const auto found = std::find_if(std::begin(kInterpreters), std::end(kInterpreters), [name](const Interpreter& i) {
    // python3, python3.11, but not nodejs-something.
    return name.starts_with(i.name) && name.find_first_not_of("0123456789.", i.name.size()) == std::string_view::npos;
  });
  return found == std::end(kInterpreters) ? nullptr : found;
}

// The number of words in this option's value; -1: an unknown option.
int ValuesOf(std::string option, std::string_view options) {
  std::replace(option.begin() + 1, option.end(), '_', '-');
  while (!options.empty()) {
    const std::string_view one = options.substr(0, options.find(' '));
    options.remove_prefix(std::min(options.size(), one.size() + 1));
    if (one == option) return 1;
    if (one.size() == option.size() + 2 && one.starts_with(option) && one.ends_with("=2")) return 2;
  }
  return -1;
}

bool IsOption(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

class Subject {
 public:
  Subject(const v1::Command& command, std::string_view root) : command_(command), size_(command.argv_size()) {
    Add(root);
    int at = 0;
    while (const int next = Carry(at)) at = next;
    if (!over_) Program(at);
    Environment();
  }
  Digest Key() const { return Sha256(text_); }
  Digest Here() const { return file_ ? Key() : Sha256(text_ + '\0' + "in" + '\0' + command_.directory()); }
  int last() const { return last_; }  // last of the words that say what is run

 private:
  std::string Word(int i) const { return i < size_ ? command_.argv(i) : std::string(); }
  void Add(std::string_view word) {
    text_ += text_.empty() ? "vrun trace 1" : "";
    text_ += '\0';
    text_ += word;
  }
  void AddFile(const std::string& path) {
    Add(Absolute(path, command_.directory()));
    file_ = true;
  }
  void AddProgram(int i) {
    const std::string word = Word(i);
    if (word.find('/') == std::string::npos) return Add(word);
    const std::string path = Absolute(word, command_.directory());
    Add(path);
    file_ |= path.starts_with(command_.directory() + "/");
  }

  // Where the command that the one at `at` runs begins; 0: it runs no other, or this is already decided.
  int Carry(int at) {
    const std::string name(BaseName(Word(at)));
    const Carrier* carrier = nullptr;
    int next = at + 1;
    for (const Carrier& c : kCarriers) {
      if (c.name == name) carrier = &c;
      if (c.name == name + " " + Word(at + 1)) {
        carrier = &c;
        next = at + 2;
      }
    }
    if (carrier == nullptr) return 0;
    if (carrier->runs == Runs::kScript) {
      AddProgram(at);
      last_ = next - 1;
      Script(next, *carrier);
      over_ = true;
      return 0;
    }
    const int inner = Inner(next, *carrier);
    if (inner == 0 || carrier->runs == Runs::kItself) return inner;
    AddProgram(at);
    // `uv run a.py`: the script is in no search path.
    if (Word(inner).ends_with(".py")) {
      Add("");
      AddFile(Word(inner));
      last_ = inner;
      over_ = true;
      return 0;
    }
    return inner;
  }

  int Inner(int at, const Carrier& carrier) {
    int operands = carrier.operands;
    bool options = true;
    for (; at < size_; ++at) {
      const std::string word = Word(at);
      if (options && IsOption(word)) {
        options = word != "--";
        at += std::max(0, ValuesOf(word, carrier.options));
      } else if (carrier.name == "env" && word.find('=') != std::string::npos) {
        assigned_.push_back(word);
      } else if (operands-- <= 0) {
        return at;
      }
    }
    return 0;
  }

  // A launcher has more options than we list: the word after an unknown option may be its value.
  void Script(int at, const Carrier& carrier) {
    bool module = false, value = false;
    int found = 0, perhaps = 0;
    for (; at < size_ && found == 0; ++at) {
      const std::string word = Word(at);
      if (word == "-m" || word == "--module") {
        module = true;
      } else if (IsOption(word)) {
        const int values = ValuesOf(word, carrier.options);
        value = values < 0 && word.find('=') == std::string::npos;
        at += std::max(0, values);
        continue;
      } else if (!value || module || word.ends_with(".py")) {
        found = at;
      } else if (perhaps == 0) {
        perhaps = at;
      }
      value = false;
    }
    if (found == 0) found = perhaps;
    if (found == 0) return;
    Add(module ? "-m" : "");
    module ? Add(Word(found)) : AddFile(Word(found));
    last_ = found;
  }

  void Program(int at) {
    AddProgram(at);
    last_ = at;
    if (const Interpreter* interpreter = InterpreterOf(Word(at))) Interpret(at + 1, *interpreter);
  }

  void Interpret(int at, const Interpreter& is) {
    const auto has = [](std::string_view letters, char c) { return letters.find(c) != std::string_view::npos; };
    bool text = false;
    for (; at < size_; ++at) {
      const std::string word = Word(at);
      if (word == "-") return;
      const bool plus = !is.text.empty() && word.size() > 1 && word[0] == '+';  // for shells
      if (word == "--" || (!IsOption(word) && !plus)) {
        const int file = word == "--" ? at + 1 : at;
        if (file < size_) Run(file, text ? "-c" : "", Word(file));
        return;
      }
      if (word.starts_with("--")) {
        if (word == "--eval" || word == "--print") return Text(at, word, "");
        at += std::max(0, ValuesOf(word, is.words));
        continue;
      }
      for (size_t i = 1; i < word.size(); ++i) {
        if (has(is.attached, word[i])) break;
        text |= has(is.text, word[i]);
        if (has(is.texts, word[i])) return Text(at, std::string("-") + word[i], word.substr(i + 1));
        if (!has(is.values, word[i])) continue;
        if (i + 1 == word.size()) ++at;
        break;
      }
    }
  }

  void Text(int at, const std::string& option, const std::string& rest) {
    if (!rest.empty()) return Run(at, option, rest);
    if (at + 1 < size_) Run(at + 1, option, Word(at + 1));
  }

  // `option`: the option that says it is not a file.
  void Run(int at, const std::string& option, const std::string& what) {
    last_ = at;
    Add(option);
    option.empty() ? AddFile(what) : Add(what);
    if (option != "-m") return;
    for (const Carrier& module : kModules) {
      if (module.name == what) Script(at + 1, module);
    }
  }

  void Environment() {
    const auto name_of = [](std::string_view variable) { return variable.substr(0, variable.find('=')); };
    std::vector<std::string> environment;
    const auto take = [&](const std::string& variable) {
      const std::string_view name = name_of(variable);
      if (std::find(kSearchPaths.begin(), kSearchPaths.end(), name) == kSearchPaths.end()) return;
      std::erase_if(environment, [&](const std::string& other) { return name_of(other) == name; });
      environment.push_back(variable);
    };
    for (const std::string& variable : command_.environment()) take(variable);
    for (const std::string& variable : assigned_) take(variable);
    std::sort(environment.begin(), environment.end());
    for (const std::string& variable : environment) Add(variable);
  }

  const v1::Command& command_;
  const int size_;
  std::string text_;
  std::vector<std::string> assigned_;  // set by env
  int last_ = 0;
  bool over_ = false;  // what is run is decided
  bool file_ = false;  // it includes a file of the user
};

}  // namespace

bool TraceSubject::Names(const std::string& path) const {
  return std::any_of(named.begin(), named.end(), [&](const std::string& name) {
    if (path == name) return true;
    const bool within = directory.size() > 1 && name.starts_with(directory + "/");
    return within && path.size() > name.size() && path.starts_with(name) && path[name.size()] == '/';
  });
}

TraceSubject TraceOf(const v1::Command& command, std::string_view root) {
  const Subject of(command, root);
  TraceSubject subject;
  subject.key = of.Key();
  subject.here = of.Here();
  subject.directory = command.directory();
  for (int i = of.last() + 1; i < command.argv_size(); ++i) {
    std::string word = command.argv(i);
    if (word.starts_with('-')) {  // --model=FILE
      const size_t equals = word.find('=');
      if (equals == std::string::npos) continue;
      word.erase(0, equals + 1);
    }
    if (!word.empty() && word.size() < PATH_MAX) subject.named.push_back(Absolute(word, command.directory()));
  }
  return subject;
}

v1::Command TracedPart(const v1::Command& command) {
  v1::Command part;
  *part.mutable_argv() = command.argv();
  part.set_directory(command.directory());
  for (const std::string& variable : command.environment()) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    const bool searched = std::find(kSearchPaths.begin(), kSearchPaths.end(), name) != kSearchPaths.end();
    // The other one is not used here, but by a home that takes the job up (JobRun::Plan::trace_parent).
    if (searched || name == telemetry::kTraceParent) part.add_environment(variable);
  }
  return part;
}

}  // namespace vrun::home
