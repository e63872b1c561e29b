// Words in the reader's language. Every key is in both files: the compiler and tests/console/test_words.py see to it.
import { lang } from "./prefs";
import en from "./words/en.json";
import zh from "./words/zh.json";

export type Word = keyof typeof en;
const books: Record<"en" | "zh", Record<Word, string>> = { en, zh };

/** Say it, with `{name}` filled in. */
export function t(word: Word, values: Record<string, string | number> = {}): string {
  return books[lang.value][word].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}

/** Say a state or code if there is a word for it, else as it is. */
export function say(prefix: string, code: string): string {
  const word = `${prefix}.${code}`;
  return word in en ? t(word as Word) : code;
}
