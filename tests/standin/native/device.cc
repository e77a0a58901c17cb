// The devices, from STANDIN_DEVICES: "name=stand-in sm_80,memory=1073741824,16=108,...;name=..." (numbers: CUdevice_attribute).
#include "standin.h"

#include <cstdio>
#include <cstdlib>
#include <random>

namespace standin {
namespace {

std::vector<Device> parse(const std::string& text) {
    std::vector<Device> found;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(';', at), text.size());
        Device device;
        while (at < end) {
            const size_t comma = std::min(text.find(',', at), end), equals = text.find('=', at);
            const std::string key = text.substr(at, equals - at), value = text.substr(equals + 1, comma - equals - 1);
            if (key == "name") device.name = value;
            else if (key == "memory") device.memory = std::strtoull(value.c_str(), nullptr, 10);
            else device.attributes[std::atoi(key.c_str())] = std::atoi(value.c_str());
            at = comma + 1;
        }
        found.push_back(device);
        at = end + 1;
    }
    return found;
}

// CUDA_VISIBLE_DEVICES with plain numbers: the first that is not a device ends the list.
std::vector<Device> visible(std::vector<Device> all) {
    const char* wanted = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) return all;
    std::vector<Device> kept;
    const std::string text = wanted;
    for (size_t at = 0; at < text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        char* end = nullptr;
        const std::string one = text.substr(at, comma - at);
        const long index = std::strtol(one.c_str(), &end, 10);
        if (end == one.c_str() || index < 0 || index >= static_cast<long>(all.size())) break;
        kept.push_back(all[index]);
        at = comma + 1;
    }
    return kept;
}

}  // namespace

const char* setting(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value && *value ? value : otherwise;
}
const std::vector<Device>& devices() {
    static auto* all = new std::vector<Device>(visible(parse(setting("STANDIN_DEVICES", ""))));
    return *all;
}
int Device::at(CUdevice_attribute attribute) const {
    auto found = attributes.find(attribute);
    return found == attributes.end() ? 0 : found->second;
}
int driver_version() { return std::atoi(setting("STANDIN_DRIVER", "13000")); }
bool late() {
    static const bool is = std::strcmp(setting("STANDIN_MODE", "late"), "early") != 0;
    return is;
}
Execute execute_mode() {
    static const Execute mode = [] {
        const std::string word = setting("STANDIN_EXECUTE", "always");
        return word == "never" ? Execute::never : word == "demand" ? Execute::demand : Execute::always;
    }();
    return mode;
}
uint64_t draw() {
    static auto* generator = new std::mt19937_64(std::strtoull(setting("STANDIN_SEED", "0"), nullptr, 10));
    return (*generator)();
}

}  // namespace standin

using namespace standin;

namespace {
bool exists(CUdevice device) { return device >= 0 && device < static_cast<int>(devices().size()); }
}  // namespace

STANDIN_API CUresult cuDeviceGetCount(int* count) {
    ENTER("cuDeviceGetCount", driver);
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(devices().size());
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    ENTER("cuDeviceGet", driver);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetName(char* name, int room, CUdevice device) {
    ENTER("cuDeviceGetName", driver);
    if (!name || room < 1) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(name, room, "%s", devices()[device].name.c_str());
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    ENTER("cuDeviceGetAttribute", driver);
    if (!value || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    *value = devices()[device].at(attribute);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    ENTER("cuDeviceTotalMem", driver);
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = devices()[device].memory;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetPCIBusId(char* text, int room, CUdevice device) {
    ENTER("cuDeviceGetPCIBusId", driver);
    if (!text || room < 13) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(text, room, "fffe:%02x:00.0", static_cast<unsigned>(device + 1));  // a domain that no board is in
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    ENTER("cuDeviceGetUuid", driver);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::memcpy(uuid->bytes, "stand-in device", 15);
    uuid->bytes[15] = static_cast<char>('0' + device);
    return CUDA_SUCCESS;
}
#undef cuDeviceGetUuid
STANDIN_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
STANDIN_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    ENTER("cuDeviceComputeCapability", driver);
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = devices()[device].capability() / 10;
    *minor = devices()[device].capability() % 10;
    return CUDA_SUCCESS;
}
