# expect: SRC016 error bnb_4bit_compute_dtype
# trap: BNB-DTYPE-NAME
from accelerate.utils import BnbQuantizationConfig

quantization = BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype="bfloat16")
