"""The paper's five heart-failure phenotypes, and the names of every other code and static level.

Weights are those of the paper's table. Background codes are listed from common to rare: diagnoses are
single-level CCS categories with their numbers (names shortened), medications therapeutic classes.
"""

PHENOTYPES = (
    "Atrial Fibrillation",
    "Hypertensive Heart Failure",
    "Obese Induced Heart Failure",
    "Cardiometabolic Driving Heart Failure",
    "Coronary Heart Disease",
)

TEMPORAL_WEIGHTS: tuple[dict[str, float], ...] = (
    {
        "Dx_Cardiac dysrhythmias [106.]": 1.0,
        "Rx_Coumarin Anticoagulants": 0.79597,
        "Dx_Heart valve disorders [96.]": 0.57526,
        "Dx_Coronary atherosclerosis and other heart disease [101.]": 0.465406,
        "Rx_Beta Blockers Cardio-Selective": 0.348005,
        "Dx_Conduction disorders [105.]": 0.246467,
    },
    {
        "Dx_Essential hypertension [98.]": 0.705933,
        "Rx_Calcium Channel Blockers": 0.684211,
        "Rx_ACE Inhibitors": 0.578426,
        "Rx_Beta Blockers Cardio-Selective": 0.564413,
        "Rx_Angiotensin II Receptor Antagonists": 0.250883,
        "Dx_Chronic kidney disease [158.]": 0.14528,
        "Rx_Thiazides and Thiazide-Like Diuretics": 0.134521,
    },
    {
        "Dx_Other back problems": 0.438879,
        "Rx_Opioid Combinations": 0.414518,
        "Dx_Other connective tissue disease [211.]": 0.304155,
        "Dx_Other non-traumatic joint disorders [204.]": 0.269159,
        "Dx_Osteoarthritis [203.]": 0.190075,
        "Rx_Opioid Agonists": 0.185262,
        "Dx_Intervertebral disc disorders": 0.156421,
        "Rx_Benzodiazepines": 0.150865,
    },
    {
        "Dx_Diabetes mellitus without complication [49.]": 0.712628,
        "Dx_Disorders of lipid metabolism [53.]": 0.507946,
        "Rx_Biguanides": 0.48821,
        "Dx_Immunizations and screening for infectious disease [10.]": 0.358349,
        "Rx_Diagnostic Tests": 0.353441,
    },
    {
        "Dx_Disorders of lipid metabolism [53.]": 0.984987,
        "Rx_HMG CoA Reductase Inhibitors": 0.442637,
        "Dx_Coronary atherosclerosis and other heart disease [101.]": 0.265414,
        "Dx_Diabetes with renal manifestations": 0.229549,
        "Dx_Chronic kidney disease [158.]": 0.203386,
        "Dx_Other thyroid disorders": 0.101615,
    },
)

# Every patient has one level of each group; the numbers are the shares of the levels in the population.
STATIC_GROUPS: tuple[dict[str, float], ...] = (
    {"Static_female": 0.52, "Static_male": 0.48},
    {"Static_white": 0.62, "Static_black": 0.08, "Static_asian": 0.16, "Static_other_race": 0.14},
    {"Static_Hispanic": 0.13, "Static_Non_Hispanic": 0.87},
    {
        "Static_age_less_60": 0.20,
        "Static_age_between_60_69": 0.28,
        "Static_age_between_70_79": 0.30,
        "Static_age_greater_80": 0.22,
    },
    {"Static_Smk_NO": 0.55, "Static_Smk_Quit": 0.35, "Static_Smk_Yes": 0.10},
    {"Static_Alcohol_No": 0.52, "Static_Alcohol_yes": 0.48},
    {
        "Static_Underweight": 0.02,
        "Static_Normal_weight": 0.28,
        "Static_Overweight": 0.36,
        "Static_Moderately_obese": 0.22,
        "Static_Severely_obese": 0.12,
    },
)

STATIC_WEIGHTS: tuple[dict[str, float], ...] = (
    {
        "Static_white": 0.270443,
        "Static_age_greater_80": 0.245424,
        "Static_Non_Hispanic": 0.245373,
        "Static_male": 0.200464,
        "Static_Alcohol_yes": 0.197431,
        "Static_Smk_Quit": 0.167838,
    },
    {
        "Static_Non_Hispanic": 0.536399,
        "Static_female": 0.390343,
        "Static_Smk_NO": 0.363068,
        "Static_Alcohol_No": 0.360158,
        "Static_white": 0.345942,
        "Static_Alcohol_yes": 0.264664,
        "Static_age_between_70_79": 0.26237,
        "Static_Severely_obese": 0.252981,
    },
    {
        "Static_female": 0.548758,
        "Static_Non_Hispanic": 0.52183,
        "Static_white": 0.474545,
        "Static_Alcohol_No": 0.404191,
        "Static_Smk_Quit": 0.273576,
        "Static_Severely_obese": 0.226485,
        "Static_age_between_70_79": 0.180683,
        "Static_age_between_60_69": 0.180006,
    },
    {
        "Static_Alcohol_No": 0.247165,
        "Static_Non_Hispanic": 0.190547,
        "Static_Smk_NO": 0.184782,
        "Static_male": 0.164795,
        "Static_white": 0.15693,
        "Static_age_between_60_69": 0.131118,
    },
    {
        "Static_Non_Hispanic": 1.0,
        "Static_white": 0.998604,
        "Static_male": 0.957132,
        "Static_Smk_Quit": 0.773904,
        "Static_Alcohol_yes": 0.604641,
    },
)

# The table prints weights above 0.1 only, so some groups have no entry. Where this would make two phenotypes
# indistinguishable by static facts (P1 and P5 differ in nothing else), clinically plausible values are added.
STATIC_COMPLETIONS: tuple[dict[str, float], ...] = (
    {"Static_Normal_weight": 1.0},
    {},
    {},
    {"Static_Moderately_obese": 1.0},
    {"Static_age_between_60_69": 1.0, "Static_Overweight": 1.0},
)

_DIAGNOSES = """
Medical examination/evaluation [256.] | Other aftercare [257.] | Other screening [258.]
Other upper respiratory infections [126.] | Esophageal disorders [138.]
Other lower respiratory disease [133.] | Malaise and fatigue [252.] | Abdominal pain [251.]
Nonspecific chest pain [102.] | Mood disorders [657.] | Genitourinary symptoms [163.]
Other skin disorders [200.] | Urinary tract infections [159.] | Other gastrointestinal disorders [155.]
Other eye disorders [91.] | Deficiency and other anemia [59.] | Anxiety disorders [651.] | Cataract [86.]
Glaucoma [88.] | Residual codes; unclassified [259.] | Other nervous system disorders [95.]
Nutritional deficiencies [52.] | Osteoporosis [206.] | Hyperplasia of prostate [164.]
Chronic obstructive pulmonary disease [127.] | Asthma [128.] | Allergic reactions [253.]
Fluid and electrolyte disorders [55.] | Acute bronchitis [125.] | Other ear and sense organ disorders [94.]
Dizziness or vertigo [93.] | Gout and crystal arthropathies [54.] | Other upper respiratory disease [134.]
Inflammatory condition of skin [198.] | Skin infections [197.] | Benign neoplasm [47.]
Headache; including migraine [84.] | Blindness and vision defects [89.] | Sprains and strains [232.]
Superficial injury; contusion [239.] | Menopausal disorders [173.]
Diverticulosis and diverticulitis [146.] | Hemorrhoids [120.]
Other nutritional and metabolic disorders [58.] | Peripheral and visceral atherosclerosis [114.]
Other circulatory disease [117.] | Mycoses [4.] | Viral infection [7.]
Other non-epithelial cancer of skin [23.] | Retinal disorders [87.] | Syncope [245.] | Pneumonia [122.]
Abdominal hernia [143.] | Other female genital disorders [175.] | Anal and rectal conditions [147.]
Other diseases of bladder and urethra [162.] | Other injuries due to external causes [244.]
Inflammation or infection of eye [90.] | Other diseases of veins and lymphatics [121.] | Influenza [123.]
Occlusion of precerebral arteries [110.] | Acute cerebrovascular disease [109.] | Foot deformities [208.]
Other bone disease [212.] | Joint disorders and dislocations [225.] | Cancer of prostate [29.]
Cancer of breast [24.] | Delirium and dementia [653.] | Gastritis and duodenitis [140.]
Other diseases of kidney and ureters [161.] | Biliary tract disease [149.] | Other liver diseases [151.]
Nausea and vomiting [250.] | Epilepsy [83.] | Rheumatoid arthritis [202.] | Calculus of urinary tract [160.]
Varicose veins [119.] | Other endocrine disorders [51.] | Nonmalignant breast conditions [167.]
Adjustment disorders [650.] | Noninfectious gastroenteritis [154.] | Rehabilitation care [254.]
Gastrointestinal hemorrhage [153.] | Phlebitis and thromboembolism [118.]
Transient cerebral ischemia [112.] | Otitis media [92.] | Other stomach disorders [141.]
Chronic ulcer of skin [199.] | Other fractures [231.] | Fracture of upper limb [229.]
Fracture of lower limb [230.] | Intestinal infection [135.] | Other male genital disorders [166.]
Coagulation disorders [62.] | Diseases of white blood cells [63.] | Acute renal failure [157.]
Neoplasms of uncertain behavior [44.] | Disorders of teeth and jaw [136.] | Diseases of mouth [137.]
Pleurisy and pneumothorax [130.] | Alcohol-related disorders [660.] | Hepatitis [6.]
Substance-related disorders [661.] | Complications of procedures [238.]
Complication of device or graft [237.] | Late effects of cerebrovascular disease [113.]
Other cerebrovascular disease [111.] | Fever [246.] | Open wounds of extremities [236.]
Open wounds of head and trunk [235.] | Parkinson disease [79.]
Degenerative nervous system conditions [81.] | Aortic and artery aneurysms [115.]
Respiratory failure [131.] | Secondary hypertension [99.] | Gastroduodenal ulcer [139.]
Bacterial infection [3.] | Other infections [8.] | Other acquired deformities [209.]
Pathological fracture [207.] | Lupus and connective tissue disorders [210.] | Cancer of colon [14.]
Cancer of bronchus and lung [19.] | Cancer of bladder [32.] | Melanomas of skin [22.]
Non-Hodgkin lymphoma [38.] | Leukemias [39.] | Inflammatory bowel disease [144.]
Intestinal obstruction [145.] | Pancreatic disorders [152.] | Nephritis and nephrosis [156.]
Genital prolapse [170.] | Menstrual disorders [171.] | Inflammatory male genital conditions [165.]
Female pelvic inflammation [168.] | Ovarian cyst [172.] | Benign neoplasm of uterus [46.]
Acute posthemorrhagic anemia [60.] | Other hematologic conditions [64.] | Septicemia [2.]
Hip fracture [226.] | Paralysis [82.] | Multiple sclerosis [80.] | Lymphadenitis [247.]
Schizophrenia [659.] | Acute myocardial infarction [100.] | Pulmonary heart disease [103.]
Myocarditis and cardiomyopathy [97.] | Other ill-defined heart disease [104.]
Arterial embolism or thrombosis [116.] | Secondary malignancies [42.] | Chemotherapy and radiotherapy [45.]
Cancer of thyroid [36.] | Cancer of kidney [33.] | Multiple myeloma [40.] | Cancer of uterus [25.]
Cancer of rectum and anus [15.] | Cancer of pancreas [17.] | Intracranial injury [233.]
Infective arthritis and osteomyelitis [201.] | Immunity disorders [57.]
Administrative or social admission [255.]
"""

_MEDICATIONS = """
Salicylates | Proton Pump Inhibitors | Loop Diuretics | Selective Serotonin Reuptake Inhibitors | NSAIDs
Thyroid Hormones | Glucocorticosteroids | Fluoroquinolones | Macrolides | Aminopenicillins
Potassium Supplements | Sympathomimetic Bronchodilators | Nasal Steroids | Topical Corticosteroids
Viral Vaccines | Bacterial Vaccines | Cephalosporins First Generation | Vitamin D | H2 Antagonists
Non-Barbiturate Hypnotics | Sulfonylureas | Antihistamines Non-Sedating | Antihistamines Sedating
Analgesics Non-Opioid | Laxatives Stimulant | Stool Softeners | Penicillin Combinations
Sulfonamide Combinations | Antitussives | Expectorants | Muscle Relaxants Central | Bisphosphonates
Alpha-1 Blockers Urinary | Ophthalmic Prostaglandins | Ophthalmic Antiinfectives | Ophthalmic Steroids
Topical Antifungals | Topical Antibiotics | Local Anesthetics Topical | Multivitamins | Iron Preparations
B-Complex Vitamins | Calcium Supplements | Platelet Aggregation Inhibitors | Nitrates | Insulin
Steroid Inhalants | Anticholinergic Bronchodilators | Adrenergic Combinations | Leukotriene Modulators
Anticonvulsants GABA Analogues | Anticonvulsants Hydantoins | Anticonvulsants Other
Tricyclic Antidepressants | Serotonin Norepinephrine Reuptake Inhibitors | Serotonin Modulators
Antidepressants Other | Azole Antifungals | Herpes Agents | Tetracyclines | Lincosamides
Nitrofurans Urinary | Urinary Antispasmodics | Urinary Analgesics | 5-Alpha Reductase Inhibitors
Impotence Agents | Estrogens | Vaginal Estrogens | Progestins | Androgens | Xanthine Oxidase Inhibitors
Gout Agents Other | Antiemetics Phenothiazine | Antiemetics 5-HT3 Antagonists | Gastrointestinal Stimulants
Antidiarrheals | Antispasmodics Intestinal | Antacids | Bulk Laxatives | Osmotic Laxatives
Fibric Acid Derivatives | Bile Acid Sequestrants | Nicotinic Acid Derivatives
Intestinal Cholesterol Absorption Inhibitors | Central Alpha Agonists | Vasodilators
Potassium Sparing Diuretics | Aldosterone Antagonists | Antihypertensive Combinations
Beta Blockers Non-Selective | Alpha-Beta Blockers | Cardiac Glycosides | Antiarrhythmics Type I
Antiarrhythmics Type III | Heparins | Thrombin Inhibitors | Factor Xa Inhibitors | Thiazolidinediones
DPP-4 Inhibitors | Incretin Mimetics | Meglitinides | Antidiabetic Combinations | Dopamine Agonists
Levodopa Combinations | Cholinesterase Inhibitors | NMDA Antagonists | Atypical Antipsychotics
Typical Antipsychotics | Lithium | Central Stimulants | Triptans | Opioid Partial Agonists
Opioid Antagonists | Butalbital Combinations | Smoking Deterrents | Antimalarials | Antimetabolites
Immunomodulators | Tumor Necrosis Factor Blockers | Aromatase Inhibitors | Antiandrogens
Hematopoietic Growth Factors | Antivirals Influenza | Hepatitis Agents | Acne Products | Psoriasis Agents
Emollients | Keratolytics | Otic Combinations | Ophthalmic Beta Blockers | Artificial Tears
Mouth and Throat Antiseptics | Calcitonins
"""


def _split(block: str, prefix: str) -> list[str]:
    return [prefix + name.strip() for name in block.replace("\n", "|").split("|") if name.strip()]


TABLE_CODES = list(dict.fromkeys(code for weights in TEMPORAL_WEIGHTS for code in weights))
BACKGROUND_DIAGNOSES = _split(_DIAGNOSES, "Dx_")
BACKGROUND_MEDICATIONS = _split(_MEDICATIONS, "Rx_")
DIAGNOSES = [code for code in TABLE_CODES if code.startswith("Dx_")] + BACKGROUND_DIAGNOSES
MEDICATIONS = [code for code in TABLE_CODES if code.startswith("Rx_")] + BACKGROUND_MEDICATIONS
FEATURE_NAMES = DIAGNOSES + MEDICATIONS
STATIC_NAMES = [level for group in STATIC_GROUPS for level in group]
