# SPDX-License-Identifier: Apache-2.0
"""A machine's GPUs and their driver, without GPUs: one directory that is a "/" of its own.

    gpus = FakeGpus(directory)                           # 8 x H100, NVLink between all, two NUMA nodes, MIG off
    gpus = FakeGpus(directory, count=2, product="NVIDIA H200", mig=[1])
    vrund node ... --driver-root DIRECTORY --device-root DIRECTORY

A node of tests/testlib/cluster.py (an emulated host, which sees little of this machine) finds it in its state directory:

    cluster.nodes[name]["directory"] / "state/gpus"  is  /var/lib/vrun/gpus  inside:  FakeGpus.for_node(cluster, "n1")
    and the node's options are FakeGpus.NODE_OPTIONS

What is in it:

    usr/lib/x86_64-linux-gnu/   libcuda.so.<version>, libnvidia-ml.so.<version>, ... with SONAME links, libcuda.so
    usr/bin/                    nvidia-smi (needs a loader that finds libnvidia-ml.so.1), nvidia-cuda-mps-control (static)
    usr/share, etc/OpenCL       ICD files
    proc/devices, proc/driver/nvidia/{version,params,registry,gpus/BDF/information}, proc/driver/nvidia-caps/mig-minors
    sys/bus/pci/devices/BDF/numa_node, sys/module/nvidia
    dev/nvidia0..., nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-caps/nvidia-cap1 and 2    (as root)
    dev/kmsg                                       the kernel's log, a plain file
    fake/gpus, fake/mig, fake/xids                 what the fake library reads and keeps (fake_state.h)

There is no driver behind the device nodes: open says ENXIO where a device filter allows it, EPERM where it does not. The
fake libcuda.so.1 goes by that: cuInit gives 0, 100 or 999 as the real one, cuDeviceGetCount the GPUs that may be opened.

Changed while a node runs (the library rereads its files at every call):

    gpus.set(3, temperature=95)           any field of a GPU: FIELDS below
    gpus.use(3, pid, bytes=1 << 30, sm=80)            a process on it; gpus.use(3) ends all
    gpus.xid(3, 79, pid=1234)             an XID: the NVML event and the line in the kernel's log
    gpus.lose(3)                          it has fallen off the bus
    gpus.instances()                      MIG instances that exist: dicts of gpu, id, profile, start, size
    gpus.mps_log(state_directory)         commands that MPS daemons of a node got

A process of a pod "uses" a GPU if its environment has FAKE_GPU_USE=GPU:BYTES:SM[:MIG INSTANCE]:
    vrun -G 1 -- env FAKE_GPU_USE=0:1073741824:80 sleep 10
"""
import os
import pathlib
import shutil
import stat

from cluster import BIN

BUILT = BIN.parent / "fake-gpu"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
UVM_MAJOR, CAPS_MAJOR = 238, 241
# SONAME -> the file's name without the version.
NAMES = {"libcuda.so.1": "libcuda.so", "libnvidia-ml.so.1": "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so",
         "libnvcuvid.so.1": "libnvcuvid.so", "libnvidia-opencl.so.1": "libnvidia-opencl.so"}
MEMORY = {"NVIDIA H100 80GB HBM3": 81559, "NVIDIA H200": 143771, "NVIDIA A100-SXM4-80GB": 81920, "NVIDIA A100-SXM4-40GB": 40960,
          "Tesla T4": 15360}   # MiB
FIELDS = """product uuid minor bus memory used numa switch nvlink mig divisible utilization power energy temperature ecc_uncorrected
ecc_corrected remap_pending remap_failed lost capability gpm processes""".split()


def built():
    return (BUILT / "libnvidia-ml.so.1").exists()


class FakeGpus:
    NODE_OPTIONS = ("--driver-root", "/var/lib/vrun/gpus", "--device-root", "/var/lib/vrun/gpus")

    @classmethod
    def for_node(cls, cluster, name, **options):
        """Before the node is launched (Cluster.reserve and make_host, or a node that is down)."""
        return cls(cluster.nodes[name]["directory"] / "state/gpus", **options)

    def __init__(self, root, count=8, product="NVIDIA H100 80GB HBM3", mig=(), nvlink=True, numa=2, driver="580.159.04"):
        """`mig`: the GPUs in MIG mode. `numa`: how many NUMA nodes they are on."""
        self.root = pathlib.Path(root)
        self.state = self.root / "fake"
        self.values = {"driver": driver, "count": count}
        for n in range(count):
            bus = f"00000000:{0x1b + 0x10 * n:02X}:00.0"
            self.values.update({f"gpu.{n}.{field}": value for field, value in dict(
                product=product, uuid=f"GPU-{n:08x}-fa4e-fa4e-fa4e-{n:012x}", minor=n, bus=bus,
                memory=MEMORY.get(product, 16384) << 20, numa=n * numa // count, switch=n // 2, mig=int(n in mig),
                divisible=int(any(c in product for c in ("A100", "H100", "H200", "B200", "A30"))), power=70000,
                capability=7 if "T4" in product else 8 if "A100" in product else 9,
                nvlink=",".join(str(o) for o in range(count) if o != n) if nvlink else "").items()})
        self.make_driver(driver)
        self.make_proc(driver)
        self.make_devices()
        self.state.mkdir(parents=True, exist_ok=True)
        for name in ("xids", "mig", "../dev/kmsg"):
            (self.state / name).touch()
        self.save()

    # --- while it runs

    def set(self, gpu, **fields):
        for field, value in fields.items():
            assert field in FIELDS, field
            self.values[f"gpu.{gpu}.{field}"] = value
        self.save()

    def use(self, gpu, pid=None, bytes=0, sm=0, instance=None):
        key = f"gpu.{gpu}.processes"
        if pid is None:
            self.values[key] = ""
        else:
            one = f"{pid}:{bytes}:{sm}" + (f":{instance}" if instance is not None else "")
            self.values[key] = ",".join(filter(None, [self.values.get(key, ""), one]))
        self.save()

    def xid(self, gpu, number, pid=None, name="python3", text=""):
        bus = self.values[f"gpu.{gpu}.bus"].lower()[4:-2]
        whom = f"pid={pid}, name={name}, " if pid else ""
        with open(self.root / "dev/kmsg", "a") as log:
            log.write(f"3,1234,5678901,-;NVRM: Xid (PCI:{bus}): {number}, {whom}{text}\n")
        with open(self.state / "xids", "a") as log:
            log.write(f"{gpu} {number}\n")

    def lose(self, gpu, lost=True):
        self.set(gpu, lost=int(lost))

    def instances(self):
        found = []
        for line in (self.state / "mig").read_text().splitlines():
            gpu, ident, profile, start, size, computes = map(int, line.split())
            found.append({"gpu": gpu, "id": ident, "profile": profile, "start": start, "size": size, "computes": bool(computes)})
        return found

    def mps_log(self, state_directory):
        """{daemon: [command]} of a node with this state directory (seen from here)."""
        return {log.parent.parent.name: log.read_text().splitlines() for log in pathlib.Path(state_directory).glob("gpus/mps/*/log/control.log")}

    def save(self):
        text = "".join(f"{key} {value}\n" for key, value in self.values.items())
        new = self.state / "gpus.new"
        new.write_text(text)
        os.rename(new, self.state / "gpus")

    # --- making it

    def put(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def make_driver(self, driver):
        libraries, programs = self.root / LIBRARIES, self.root / "usr/bin"
        libraries.mkdir(parents=True, exist_ok=True)
        programs.mkdir(parents=True, exist_ok=True)
        for soname, name in NAMES.items():
            shutil.copy2(BUILT / soname, libraries / f"{name}.{driver}")
            for link, target in ((soname, f"{name}.{driver}"), (name, soname)):
                (libraries / link).unlink(missing_ok=True)
                (libraries / link).symlink_to(target)
        shutil.copy2(BUILT / "fake_smi", programs / "nvidia-smi")
        shutil.copy2(BUILT / "fake_mps_control", programs / "nvidia-cuda-mps-control")
        shutil.copy2(BUILT / "fake_mps_control", programs / "nvidia-cuda-mps-server")
        self.put("etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
        self.put("usr/share/vulkan/icd.d/nvidia_icd.json", '{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0"}}\n')

    def make_proc(self, driver):
        self.put("proc/devices", f"Character devices:\n  1 mem\n  5 /dev/tty\n195 nvidia\n195 nvidiactl\n{UVM_MAJOR} nvidia-uvm\n"
                                 f"239 nvidia-nvswitch\n240 nvidia-nvlink\n{CAPS_MAJOR} nvidia-caps\n242 nvidia-caps-imex-channels\n\n"
                                 "Block devices:\n  8 sd\n")
        nvidia = "proc/driver/nvidia"
        self.put(f"{nvidia}/version", f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  (fake)\n"
                                      "GCC version:  gcc version 13.3.0\n")
        self.put(f"{nvidia}/params", "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
        self.put(f"{nvidia}/registry", 'Binary: ""\n')
        for n in range(self.values["count"]):
            bus = self.bus(n)
            self.put(f"{nvidia}/gpus/{bus}/information",
                     f"Model: \t\t {self.values[f'gpu.{n}.product']}\nIRQ:   \t\t {30 + n}\nGPU UUID: \t {self.values[f'gpu.{n}.uuid']}\n"
                     f"Bus Type: \t PCIe\nBus Location: \t {bus}\nDevice Minor: \t {n}\nGPU Excluded:\t No\n")
            self.put(f"sys/bus/pci/devices/{bus}/numa_node", f"{self.values[f'gpu.{n}.numa']}\n")
        self.put("sys/module/nvidia/initstate", "live\n")
        # As on a real machine: for 32 GPUs, 15 GPU instances and 8 compute instances of each, whether they exist or not.
        lines, minor = ["config 1", "monitor 2"], 3
        for gpu in range(32):
            for gi in range(15):
                for name in [f"gpu{gpu}/gi{gi}/access", *[f"gpu{gpu}/gi{gi}/ci{ci}/access" for ci in range(8)]]:
                    lines.append(f"{name} {minor}")
                    minor += 1
        self.put("proc/driver/nvidia-caps/mig-minors", "\n".join(lines) + "\n")

    def bus(self, gpu):
        """As sysfs names it: 0000:1b:00.0."""
        return self.values[f"gpu.{gpu}.bus"].lower()[4:]

    def make_devices(self):
        nodes = {f"nvidia{n}": (195, n) for n in range(self.values["count"])}
        nodes.update({"nvidiactl": (195, 255), "nvidia-uvm": (UVM_MAJOR, 0), "nvidia-uvm-tools": (UVM_MAJOR, 1),
                      "nvidia-caps/nvidia-cap1": (CAPS_MAJOR, 1), "nvidia-caps/nvidia-cap2": (CAPS_MAJOR, 2)})
        for name, (major, minor) in nodes.items():
            path = self.root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if os.geteuid() == 0:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            else:
                path.touch()
