//! Character references in HTML (HTML, §13.5): the numeric ones, and the names of HTML 4.

/// Names of the characters from U+00A0 to U+00FF, in order. Their semicolon may be missing.
const LATIN_1: &str = "\
    nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg \
    plusmn sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 \
    iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml \
    Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave \
    Uacute Ucirc Uuml Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil \
    egrave eacute ecirc euml igrave iacute icirc iuml eth ntilde ograve oacute ocirc otilde \
    ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml";

/// The same for the letters of ASCII that have a name.
const ASCII: &[(&str, char)] = &[
    ("amp", '&'),
    ("lt", '<'),
    ("gt", '>'),
    ("quot", '"'),
    ("AMP", '&'),
    ("LT", '<'),
    ("GT", '>'),
    ("QUOT", '"'),
];

/// Other names, with their characters: they need a semicolon.
const OTHERS: &str = "\
    apos ' OElig \u{152} oelig \u{153} Scaron \u{160} scaron \u{161} Yuml \u{178} fnof \
    \u{192} circ \u{2c6} tilde \u{2dc} ensp \u{2002} emsp \u{2003} thinsp \u{2009} ndash \
    \u{2013} mdash \u{2014} lsquo \u{2018} rsquo \u{2019} sbquo \u{201a} ldquo \u{201c} \
    rdquo \u{201d} bdquo \u{201e} dagger \u{2020} Dagger \u{2021} bull \u{2022} hellip \
    \u{2026} permil \u{2030} prime \u{2032} Prime \u{2033} lsaquo \u{2039} rsaquo \u{203a} \
    oline \u{203e} frasl \u{2044} euro \u{20ac} image \u{2111} weierp \u{2118} real \u{211c} \
    trade \u{2122} alefsym \u{2135} larr \u{2190} uarr \u{2191} rarr \u{2192} darr \u{2193} \
    harr \u{2194} crarr \u{21b5} lArr \u{21d0} uArr \u{21d1} rArr \u{21d2} dArr \u{21d3} \
    hArr \u{21d4} forall \u{2200} part \u{2202} exist \u{2203} empty \u{2205} nabla \u{2207} \
    isin \u{2208} notin \u{2209} ni \u{220b} prod \u{220f} sum \u{2211} minus \u{2212} \
    lowast \u{2217} radic \u{221a} prop \u{221d} infin \u{221e} ang \u{2220} and \u{2227} or \
    \u{2228} cap \u{2229} cup \u{222a} int \u{222b} there4 \u{2234} sim \u{223c} cong \
    \u{2245} asymp \u{2248} ne \u{2260} equiv \u{2261} le \u{2264} ge \u{2265} sub \u{2282} \
    sup \u{2283} nsub \u{2284} sube \u{2286} supe \u{2287} oplus \u{2295} otimes \u{2297} \
    perp \u{22a5} sdot \u{22c5} lceil \u{2308} rceil \u{2309} lfloor \u{230a} rfloor \
    \u{230b} lang \u{2329} rang \u{232a} loz \u{25ca} spades \u{2660} clubs \u{2663} hearts \
    \u{2665} diams \u{2666} check \u{2713} star \u{2606} Alpha \u{391} Beta \u{392} Gamma \
    \u{393} Delta \u{394} Epsilon \u{395} Zeta \u{396} Eta \u{397} Theta \u{398} Iota \
    \u{399} Kappa \u{39a} Lambda \u{39b} Mu \u{39c} Nu \u{39d} Xi \u{39e} Omicron \u{39f} Pi \
    \u{3a0} Rho \u{3a1} Sigma \u{3a3} Tau \u{3a4} Upsilon \u{3a5} Phi \u{3a6} Chi \u{3a7} \
    Psi \u{3a8} Omega \u{3a9} alpha \u{3b1} beta \u{3b2} gamma \u{3b3} delta \u{3b4} epsilon \
    \u{3b5} zeta \u{3b6} eta \u{3b7} theta \u{3b8} iota \u{3b9} kappa \u{3ba} lambda \u{3bb} \
    mu \u{3bc} nu \u{3bd} xi \u{3be} omicron \u{3bf} pi \u{3c0} rho \u{3c1} sigmaf \u{3c2} \
    sigma \u{3c3} tau \u{3c4} upsilon \u{3c5} phi \u{3c6} chi \u{3c7} psi \u{3c8} omega \
    \u{3c9} thetasym \u{3d1} upsih \u{3d2} piv \u{3d6} colon : comma , period . excl ! quest \
    ? num # dollar $ percnt % lpar ( rpar ) lsqb [ rsqb ] lcub { rcub } vert | verbar | sol \
    / bsol \\ lowbar _ commat @ plus + equals = ast * grave ` semi ; hyphen \u{2010} dash \
    \u{2010} horbar \u{2015} numero \u{2116} copysr \u{2117} Ccaron \u{10c} ccaron \u{10d} \
    Zcaron \u{17d} zcaron \u{17e} Rcaron \u{158} rcaron \u{159} Ecaron \u{11a} ecaron \
    \u{11b} Ncaron \u{147} ncaron \u{148} Lstrok \u{141} lstrok \u{142} Sacute \u{15a} \
    sacute \u{15b} Zacute \u{179} zacute \u{17a} Zdot \u{17b} zdot \u{17c} Aogon \u{104} \
    aogon \u{105} Eogon \u{118} eogon \u{119} Cacute \u{106} cacute \u{107} Nacute \u{143} \
    nacute \u{144} Abreve \u{102} abreve \u{103} Gbreve \u{11e} gbreve \u{11f} Idot \u{130} \
    imath \u{131} inodot \u{131} Scedil \u{15e} scedil \u{15f} Tcedil \u{162} tcedil \u{163} \
    Uring \u{16e} uring \u{16f} Odblac \u{150} odblac \u{151} Udblac \u{170} udblac \u{171}";

/// Number of bytes after `&` that can be a reference.
const LEN_MAX: usize = 12;

/// Replaces character references.
pub fn decoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match reference(rest) {
            Some((letter, len)) => {
                out.push(letter);
                rest = &rest[len..];
            }
            None => out.push('&'),
        }
    }
    out.push_str(rest);
    out
}

/// The character that the text after `&` stands for, and the length of its reference.
fn reference(text: &str) -> Option<(char, usize)> {
    if let Some(number) = text.strip_prefix('#') {
        let (digits, radix, head) = match number.strip_prefix(['x', 'X']) {
            Some(digits) => (digits, 16, 2),
            None => (number, 10, 1),
        };
        let end = digits.find(|letter: char| !letter.is_digit(radix));
        let digits = &digits[..end.unwrap_or(digits.len())];
        let number = u32::from_str_radix(digits, radix);
        if digits.is_empty() {
            return None;
        }
        let letter = number.ok().and_then(numbered);
        let len = head + digits.len();
        let has_end = text[len..].starts_with(';');
        return Some((
            letter.unwrap_or(char::REPLACEMENT_CHARACTER),
            len + usize::from(has_end),
        ));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric();
    let len = text
        .bytes()
        .take(LEN_MAX)
        .take_while(|byte| is_name(*byte))
        .count();
    let (name, behind) = text.split_at(len);
    if behind.starts_with(';')
        && let Some(letter) = named(name)
    {
        return Some((letter, len + 1));
    }
    // The longest name that needs no semicolon.
    (2..=len).rev().find_map(|len| {
        let letter = short(&name[..len])?;
        Some((letter, len))
    })
}

/// The character with a number; those of C1 are meant as in Windows-1252.
fn numbered(number: u32) -> Option<char> {
    const C1: [u16; 32] = [
        0x20ac, 0x81, 0x201a, 0x192, 0x201e, 0x2026, 0x2020, 0x2021, 0x2c6, 0x2030, 0x160, 0x2039,
        0x152, 0x8d, 0x17d, 0x8f, 0x90, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
        0x2dc, 0x2122, 0x161, 0x203a, 0x153, 0x9d, 0x17e, 0x178,
    ];
    match number {
        0 => None,
        0x80..=0x9f => char::from_u32(C1[number as usize - 0x80].into()),
        _ => char::from_u32(number),
    }
}

fn short(name: &str) -> Option<char> {
    let latin_1 = || {
        let at = LATIN_1
            .split_ascii_whitespace()
            .position(|one| one == name)?;
        char::from_u32(0xa0 + at as u32)
    };
    let ascii = ASCII.iter().find(|(one, _)| *one == name);
    ascii.map(|(_, letter)| *letter).or_else(latin_1)
}

fn named(name: &str) -> Option<char> {
    short(name).or_else(|| {
        let mut words = OTHERS.split_ascii_whitespace();
        while let (Some(one), Some(letter)) = (words.next(), words.next()) {
            if one == name {
                return letter.chars().next();
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_characters() {
        for (text, expected) in [
            ("Tom &amp; Jerry", "Tom & Jerry"),
            ("a&lt;b&gt;c", "a<b>c"),
            ("&quot;x&quot; &#39;y&#x27; &apos;", "\"x\" 'y' '"),
            ("caf&eacute; &copy 2026", "caf\u{e9} \u{a9} 2026"),
            (
                "&ndash;&mdash;&hellip;&euro;&#8211;&#x1F600;",
                "\u{2013}\u{2014}\u{2026}\u{20ac}\u{2013}\u{1f600}",
            ),
            ("&yuml;&nbsp;&divide;", "\u{ff}\u{a0}\u{f7}"),
            ("&amp;amp; &ampx &notit;", "&amp; &x \u{ac}it;"),
            (
                "&#150; &#0; &#xd800; &#99999999999;",
                "\u{2013} \u{fffd} \u{fffd} \u{fffd}",
            ),
            (
                "a & b &; &# &#x; &nosuchname; &",
                "a & b &; &# &#x; &nosuchname; &",
            ),
            ("&Alpha;&omega;&rarr;&lang", "\u{391}\u{3c9}\u{2192}&lang"),
        ] {
            assert_eq!(decoded(text), expected);
        }
        assert_eq!(LATIN_1.split_ascii_whitespace().count(), 96);
    }
}
