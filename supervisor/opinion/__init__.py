"""A second opinion on an unexplained failure, from a language model that the user chose. (I/O)

Off unless the setting `second-opinion` names an endpoint. Start with `inquiry` (one question and its answer);
`question` says what leaves, `redaction` what does not, `answer` what is believed, `endpoint` how it is asked. What
becomes of an answer decides `diagnosis/second_opinion`. May import diagnosis and the rooms below it.
"""
